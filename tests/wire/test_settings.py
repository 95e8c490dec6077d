from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from redpoll.config import Config
from redpoll.wire.settings import Settings


def test_defaults_are_the_configs() -> None:
    """Without a value, a setting is what a node without options uses."""
    config = Config()
    own = Settings(identity=bytes(16))
    effective: dict[str, object] = {"slots": config.effective_slots, "window": config.effective_window}
    effective |= {"reuse_time": config.effective_reuse_time, "identity": own.identity, "port": 0}
    for each in fields(Config):
        assert getattr(own, each.name) == effective.get(each.name, getattr(config, each.name)), each.name


def test_effective_values() -> None:
    """The settings of a node are its options, with the effective value of each that depends on others."""
    config = Config(acknowledge=False, timeout=20.0, port=2998, window_bytes=1234)
    own = Settings.of(config, identity=bytes(range(16)), epoch=7, flat=True)
    assert (own.slots, own.window, own.reuse_time) == (16, 64, 60.0)
    assert (own.acknowledge, own.timeout, own.window_bytes) == (False, 20.0, 1234)
    assert (own.identity, own.epoch, own.flat) == (bytes(range(16)), 7, True)
    # Which port is announced is known once the node listens.
    assert own.port == 0


def test_fixed() -> None:
    """Settings do not change under the links that work by them."""
    own = Settings(identity=bytes(16))
    with pytest.raises(FrozenInstanceError):
        own.slots = 2  # type: ignore[misc]
