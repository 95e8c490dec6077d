"""The protocol of engines: it says what it promises."""

from __future__ import annotations

import inspect

import pytest

from redpoll.bus import engine
from redpoll.bus.engine import Clock, Consumer, Delivery, Engine, Hold, Listener, Subscription, Timer, Watcher

PROTOCOLS = (Clock, Consumer, Delivery, Engine, Hold, Listener, Subscription, Timer, Watcher)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_every_verb_says_what_it_promises(protocol: type) -> None:
    """Each method of a protocol has a docstring, and each argument of it a place there."""
    for name, method in vars(protocol).items():
        if name.startswith("_") or not (inspect.isfunction(method) or isinstance(method, property)):
            continue
        text = inspect.getdoc(method)
        assert text, f"{protocol.__name__}.{name}"
        if inspect.isfunction(method) and "Args:" in text:
            missing = [each for each in list(inspect.signature(method).parameters)[1:] if f"{each}:" not in text]
            assert not missing, f"{protocol.__name__}.{name}: {missing}"


def test_the_protocols_are_all_there_is() -> None:
    """The module exports its protocols and the types of their callbacks."""
    assert {each.__name__ for each in PROTOCOLS} | {"DeliverySink", "EventSink", "Observer"} == set(engine.__all__)
