from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from redpoll.config import Config
from redpoll.wire.settings import Settings


def test_defaults_are_the_configs() -> None:
    """Fields with the same name have the same default."""
    config = Config()
    own = Settings(identity=bytes(16))
    shared = {field.name for field in fields(Settings)} & {field.name for field in fields(Config)}
    derived = {"identity", "port", "slots", "window", "handshake_timeout", "reuse_time"}
    assert shared - derived >= {"window_bytes", "lookahead", "max_message_size", "fragment_size", "keepalive"}
    assert {name: getattr(own, name) for name in shared - derived} == {
        name: getattr(config, name) for name in shared - derived
    }
    assert (own.slots, own.window, own.reuse_time) == (
        config.effective_slots,
        config.effective_window,
        config.effective_reuse_time,
    )
    assert (own.queue_messages, own.queue_bytes) == (config.send_queue_limit, config.send_queue_bytes)
    assert own.handshake_timeout == config.handshake_timeout


def test_fixed() -> None:
    """Settings do not change under the links that work by them."""
    own = Settings(identity=bytes(16))
    with pytest.raises(FrozenInstanceError):
        own.slots = 2  # type: ignore[misc]
