"""Names and arguments of what the engine declares at RabbitMQ, as plain data.

Each `QueueSpec` is one queue for each level of priority, all bound to one exchange by their names. What leaves a queue
otherwise than by a worker goes to the exchange for dead letters: from there to the queue of dead letters, and to the inbox
of the publisher, whose name the message has as a second routing key (``CC``), which only that exchange knows. A delay is a
way through queues that hold each message for a time of its own, a power of two: the routing key names those of the way.

Nothing here is a transient queue that is not exclusive, a global prefetch, or a mirrored queue: RabbitMQ 4.3 refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from redpoll.bus.records import QueueSpec
from redpoll.errors import ConfigError, Unsupported

__all__ = [
    "CATALOGUE",
    "CONTROL",
    "DEAD",
    "DELAY_LEVELS",
    "DELAY_UNIT",
    "EVENTS",
    "FIXED",
    "FOREVER",
    "SERVER_TIMEOUT",
    "WORK",
    "Declaration",
    "Exchange",
    "catalogue",
    "dead_queue",
    "delay_exchanges",
    "delay_key",
    "delay_levels",
    "delay_name",
    "delay_queue",
    "delay_target",
    "exchanges",
    "inbox",
    "level",
    "levels",
    "lock",
    "newest",
    "queues",
    "subscription",
    "timeout_arguments",
    "will",
]

WORK: Final = "redpoll.work"
"""Exchange: tasks by the name of their queue."""
EVENTS: Final = "redpoll.events"
"""Exchange: events by their subject."""
DEAD: Final = "redpoll.dead"
"""Exchange: dead letters by the name of the queue that they leave, and by the inbox of their publisher."""
CONTROL: Final = "redpoll.control"
"""Exchange: what a publisher says to those that consume a queue, by its name."""
CATALOGUE: Final = "redpoll.queues"
"""Stream: the settings of all queues, the last ones count."""

SERVER_TIMEOUT: Final = 1_800.0
"""Seconds for which a server leaves a delivery open that cannot be told otherwise."""
FOREVER: Final = 10 * 365 * 86_400.0
"""The seconds that one is told which can."""

DELAY_UNIT: Final = 0.1
"""Seconds of the shortest step of a delay."""
DELAY_LEVELS: Final = 25
"""Steps, each twice as long as the one before: the longest delay is 38 days."""

_MAX_NAME: Final = 255
_DURABLE, _EXCLUSIVE, _AUTO_DELETE = 2, 4, 8

FIXED: Final[Mapping[str, str]] = {
    "x-queue-type": "durable",
    "durable": "durable",
    "x-max-length": "max_length",
    "x-max-length-bytes": "max_bytes",
    "x-overflow": "at_limit",
    "x-dead-letter-strategy": "at_limit",
    "x-expires": "expires",
    "x-message-ttl": "ttl",
}
"""Fields of a `QueueSpec` by the arguments of a queue, which never change."""


class Declaration(NamedTuple):
    """A queue: its name, the bits and the arguments of ``queue.declare``, and its bindings (exchange, key)."""

    name: str
    bits: int
    arguments: Mapping[str, Any]
    bindings: tuple[tuple[str, str], ...] = ()


class Exchange(NamedTuple):
    """An exchange; all are durable, and forward to the others named (exchange, key)."""

    name: str
    kind: str
    sources: tuple[tuple[str, str], ...] = ()


def exchanges() -> tuple[Exchange, ...]:
    """Return the exchanges, but for those of delays."""
    return Exchange(WORK, "direct"), Exchange(EVENTS, "topic"), Exchange(DEAD, "direct"), Exchange(CONTROL, "direct")


def _named(text: str) -> str:
    if len(text.encode()) > _MAX_NAME:
        raise ConfigError("name", text, f"must have at most {_MAX_NAME} bytes, as every name on RabbitMQ")
    return text


def level(queue: str, priority: int) -> str:
    """Return the name of the queue of a level of priority."""
    return _named(f"{queue}.priority.{priority}") if priority else queue


def levels(spec: QueueSpec) -> list[str]:
    """Return the names of the queues of a spec, the highest priority first."""
    return [level(spec.name, each) for each in reversed(range(spec.priorities))]


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1_000))


def dead_queue(spec: QueueSpec) -> str:
    """Return the name of the queue of its dead letters."""
    return spec.dead_letter or _named(f"{spec.name}.dead")


def queues(spec: QueueSpec, replicated: bool = False) -> Iterator[Declaration]:
    """Return the queues of a spec.

    Args:
        spec: The settings.
        replicated: True for quorum queues where the spec is not durable too: a classic queue is away with its server.
    """
    quorum = spec.durable or replicated
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum" if quorum else "classic",
        "x-dead-letter-exchange": DEAD,
        "x-max-length-bytes": spec.max_bytes,
        "x-overflow": "drop-head" if spec.at_limit == "drop-old" else "reject-publish",
    }
    if spec.max_length is not None:
        # A quorum queue refuses once it has more than that.
        refuses = quorum and spec.at_limit != "drop-old"
        arguments["x-max-length"] = spec.max_length - 1 if refuses else spec.max_length
    if spec.expires is not None:
        arguments["x-expires"] = _milliseconds(spec.expires)
    if spec.ttl is not None and spec.kind == "events":
        arguments["x-message-ttl"] = _milliseconds(spec.ttl)
    if quorum:
        if spec.at_limit != "drop-old":
            arguments["x-dead-letter-strategy"] = "at-least-once"
        # None in fact. With a limit a task that is given back comes before others, without one behind them; give-backs
        # count, and where none is named 20 are the limit of RabbitMQ 4.
        arguments["x-delivery-limit"] = 2**31 - 1
        if spec.durable and spec.dead_letter is None and spec.kind == "task":
            yield _dead(spec)
    for number in range(spec.priorities):
        name = level(spec.name, number)
        bindings = [(WORK, name)]
        if number == 0:
            bindings += [(EVENTS, each) for each in spec.topics]
        yield Declaration(name, _DURABLE, arguments, tuple(bindings))


def _dead(spec: QueueSpec) -> Declaration:
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-max-length-bytes": spec.max_bytes,
        "x-overflow": "drop-head",
    }
    if spec.max_length is not None:
        arguments["x-max-length"] = spec.max_length
    name = dead_queue(spec)
    return Declaration(name, _DURABLE, arguments, tuple((DEAD, each) for each in levels(spec)))


def catalogue(number: int = 0) -> Declaration:
    """Return the stream of the settings of queues, or the one behind so many that the server lost."""
    arguments = {"x-queue-type": "stream", "x-max-length-bytes": 2**24, "x-stream-max-segment-size-bytes": 2**22}
    return Declaration(f"{CATALOGUE}.{number}" if number else CATALOGUE, _DURABLE, arguments)


def inbox(name: str, seconds: float, most: int, replicated: bool = False) -> Declaration:
    """Return the queue of what comes back to a program; it outlives the connection for some seconds."""
    arguments = {
        "x-queue-type": "quorum" if replicated else "classic",
        "x-expires": _milliseconds(seconds),
        "x-max-length": most,
        "x-overflow": "drop-head",
    }
    return Declaration(name, _DURABLE, arguments, ((DEAD, name),))


def will(name: str, seconds: float) -> Declaration:
    """Return the queue of messages that go to the dead letters as soon as the program that holds them is gone."""
    arguments = {
        "x-queue-type": "classic",
        "x-expires": _milliseconds(seconds),
        "x-message-ttl": 0,
        "x-dead-letter-exchange": DEAD,
    }
    return Declaration(name, _DURABLE, arguments, ((WORK, name),))


def lock(queue: str) -> Declaration:
    """Return the queue that says that another one has an exclusive consumer: quorum queues know no such.

    It ends with its connection, or before that with its consumer.
    """
    arguments = {"x-queue-type": "classic", "x-max-length": 1}
    return Declaration(_named(f"redpoll.exclusive.{queue}"), _EXCLUSIVE | _AUTO_DELETE, arguments)


def newest(name: str) -> Declaration:
    """Return a queue that is made behind others, and ends by itself if the program that made it does not delete it."""
    arguments = {"x-queue-type": "quorum", "x-expires": _milliseconds(60.0)}
    return Declaration(f"redpoll.newest.{name}", _DURABLE, arguments)


def subscription(name: str, patterns: tuple[str, ...], most: int) -> Declaration:
    """Return the queue of a live subscription, which ends with its connection."""
    arguments = {"x-max-length": most, "x-overflow": "drop-head"}
    bindings = tuple((EVENTS, each) for each in patterns)
    return Declaration(name, _EXCLUSIVE | _AUTO_DELETE, arguments, bindings)


# -- delays


def delay_name(number: int) -> str:
    """Return the name of a step of delays, of its exchange and of its queue."""
    return f"redpoll.delay.{number}" if number >= 0 else "redpoll.delay.end"


def delay_levels(seconds: float) -> list[int]:
    """Return the numbers of the steps of a delay, the longest first."""
    steps = math.ceil(seconds / DELAY_UNIT - 1e-9)
    if steps >= 2**DELAY_LEVELS:
        raise Unsupported("amqp", f"a delay of {seconds:g} s", "38 days are the longest")
    return [each for each in reversed(range(DELAY_LEVELS)) if steps >> each & 1]


def delay_key(seconds: float, queue: str) -> str:
    """Return the routing key of a delay: a digit for each step, 1 where it waits, and the queue at the end."""
    chosen = set(delay_levels(seconds))
    digits = ".".join("1" if each in chosen else "0" for each in reversed(range(DELAY_LEVELS)))
    key = f"{digits}.{queue}"
    if len(key.encode()) > _MAX_NAME:
        raise Unsupported("amqp", f"delays of the queue {queue!r}", f"its name may have {_MAX_NAME - 50} bytes")
    return key


def _pattern(number: int, digit: str) -> str:
    return ".".join(["*"] * (DELAY_LEVELS - 1 - number) + [digit, "#"])


def delay_exchanges() -> Iterator[Exchange]:
    """Return the exchanges of delays, the last one first, each with those that hand on to it."""
    for number in range(-1, DELAY_LEVELS):
        above = number + 1
        sources = ((delay_name(above), _pattern(above, "0")),) if above < DELAY_LEVELS else ()
        yield Exchange(delay_name(number), "topic", sources)


def delay_queue(number: int) -> Declaration:
    """Return the queue of a step of delays."""
    arguments = {
        "x-queue-type": "quorum",
        "x-message-ttl": _milliseconds(DELAY_UNIT * 2**number),
        "x-dead-letter-exchange": delay_name(number - 1),
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    return Declaration(delay_name(number), _DURABLE, arguments, ((delay_name(number), _pattern(number, "1")),))


def delay_target(queue: str) -> tuple[str, str]:
    """Return the binding of a queue to the end of all delays."""
    return delay_name(-1), ".".join(["*"] * DELAY_LEVELS) + f".{queue}"


def timeout_arguments(version: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Return the arguments of a consumer whose deliveries may stay open for so long; none where the server knows no such."""
    return {"x-consumer-timeout": _milliseconds(seconds)} if version >= (3, 11, 15) else {}
