"""The option ``speak``, and those of the libraries that it names."""

from __future__ import annotations

from typing import Any

import pytest

import redpoll
from redpoll.bus.engines.amqp.foreign.engine import DialectEngine
from redpoll.errors import ConfigError, DialFailed


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("amqp://host/", {"speak": "celery"}, "speak.*celery.*kiwipy.*oslo"),
        ("amqp://host/?speak=celery", {}, "speak"),
        ("amqp://host/", {"task_queue": "q"}, "task_queue"),
        ("amqp://host/", {"speak": "oslo", "task_queue": "q"}, "task_queue.*exchange"),
        ("amqp://host/", {"speak": "kiwipy", "exchange": "q"}, "exchange.*task_queue"),
        ("amqp://host/", {"speak": "oslo", "quorum": 3}, "quorum"),
        ("amqp://host/", {"speak": "kiwipy", "decoder": 7}, "decoder"),
    ],
)
def test_bad_options(url: str, options: dict[str, Any], text: str) -> None:
    """A library that is none, an option that is another one's, and a bad value are refused, by name."""
    with pytest.raises(ConfigError, match=text):
        redpoll.connect(url, **options)


def test_options_in_the_url() -> None:
    """Options of the library can stand in the URL, flags as words."""
    bus = redpoll.connect("amqp://host/?speak=oslo&exchange=nova&durable=true&quorum=no")
    assert isinstance(bus.engine, DialectEngine)
    queue = bus.engine.dialect.queue("rpc:calc")
    assert (queue.bindings[0][0].name, queue.durable, queue.arguments) == ("nova", True, {})
    assert (bus.capabilities.engine, bus.capabilities.hold) == ("amqp", 1_800.0)
    assert redpoll.connect("amqp://host/", speak="kiwipy", consumer_timeout=3_600.0).capabilities.hold == 3_600.0


@pytest.mark.asyncio
async def test_without_a_server() -> None:
    """Entering fails where nobody listens, with the host; a bus that was not entered can be closed."""
    await redpoll.connect("amqp://host/", speak="oslo").close()
    with pytest.raises(DialFailed, match=r"127\.0\.0\.1:1"):
        async with redpoll.connect("amqp://127.0.0.1:1/", speak="kiwipy", connect_timeout=0.2):
            pass
