"""What is declared at RabbitMQ, as data: nothing that a version from 3.10 to 4.3 refuses."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus import QueueSpec
from redpoll.bus.engines.amqp import topology as t
from redpoll.errors import ConfigError, Unsupported

SPECS = [
    QueueSpec("plain"),
    QueueSpec("limits", max_length=10, max_bytes=1_000, at_limit="refuse", expires=2.5),
    QueueSpec("ring", at_limit="drop-old", max_length=10),
    QueueSpec("levels", priorities=3, dead_letter="graveyard"),
    QueueSpec("rpc:calls", kind="rpc", durable=False, expires=60, max_attempts=None),
    QueueSpec("broadcast:durable", kind="events", topics=("a.*", "b.#"), ttl=60),
]
#: Arguments of a queue that RabbitMQ 3.10 knows and 4.3 takes.
KNOWN = {
    "x-queue-type", "x-max-length", "x-max-length-bytes", "x-overflow", "x-expires", "x-message-ttl", "x-delivery-limit",
    "x-dead-letter-exchange", "x-dead-letter-strategy", "x-stream-max-segment-size-bytes",
}  # fmt: skip
_DURABLE, _EXCLUSIVE = 2, 4


def everything() -> Iterable[t.Declaration]:
    """Return all queues that the engine ever declares."""
    for spec in SPECS:
        yield from t.queues(spec)
    yield from t.queues(SPECS[4], replicated=True)
    yield t.inbox("redpoll.inbox.y", 60, 1_000, replicated=True)
    yield t.catalogue()
    yield t.inbox("redpoll.inbox.x", 60, 1_000)
    yield t.will("redpoll.will.x", 60)
    yield t.lock("plain")
    yield t.subscription("redpoll.events.x.1.1", ("a.*",), 1_000)
    yield from map(t.delay_queue, range(t.DELAY_LEVELS))


@pytest.mark.parametrize("declaration", list(everything()), ids=lambda each: each.name)
def test_nothing_that_a_newer_server_refuses(declaration: t.Declaration) -> None:
    """No queue is transient without being exclusive, none is mirrored, no argument is one that 4.3 refuses (pitfall 8)."""
    assert declaration.bits & (_DURABLE | _EXCLUSIVE) in {_DURABLE, _EXCLUSIVE}
    assert set(declaration.arguments) <= KNOWN
    kind = declaration.arguments.get("x-queue-type", "classic")
    assert kind in {"classic", "quorum", "stream"}
    strategy = declaration.arguments.get("x-dead-letter-strategy")
    if strategy is not None:
        assert (kind, strategy, declaration.arguments["x-overflow"]) == ("quorum", "at-least-once", "reject-publish")


def test_durability_is_that_of_the_whole_path() -> None:
    """All exchanges are durable, and so is each queue that holds tasks: quorum where the tasks are durable (pitfall 7)."""
    assert {each.name for each in t.exchanges()} == {t.WORK, t.EVENTS, t.DEAD, t.CONTROL}
    for spec in SPECS:
        kinds = {each.arguments["x-queue-type"] for each in t.queues(spec)}
        assert kinds == {"quorum" if spec.durable else "classic"}


def test_a_cluster_has_nothing_on_one_server_alone() -> None:
    """Where there are several servers the queues of calls, and inboxes, are quorum queues; dead calls are not kept."""
    (queue,) = t.queues(SPECS[4], replicated=True)
    assert queue.arguments["x-queue-type"] == "quorum"
    assert t.inbox("redpoll.inbox.x", 60, 1_000, replicated=True).arguments["x-queue-type"] == "quorum"


def test_a_queue_for_each_priority() -> None:
    """Levels of priority are queues, the highest first; their dead letters have one queue, the one that the spec names."""
    spec = SPECS[3]
    assert t.levels(spec) == ["levels.priority.2", "levels.priority.1", "levels"]
    assert [each.name for each in t.queues(spec)] == ["levels", "levels.priority.1", "levels.priority.2"]
    assert t.dead_queue(spec) == "graveyard"
    dead, *_ = t.queues(QueueSpec("plain", priorities=2))
    assert (dead.name, dead.bindings) == ("plain.dead", ((t.DEAD, "plain.priority.1"), (t.DEAD, "plain")))


def test_limits_are_arguments() -> None:
    """Limits are arguments; a quorum queue that refuses holds one more than it is told, a ring and a classic one not."""

    def arguments(**options: Any) -> dict[str, Any]:
        return dict(list(t.queues(QueueSpec("q", max_length=5, **options)))[-1].arguments)

    assert arguments()["x-max-length"] == 4
    assert arguments(at_limit="drop-old")["x-max-length"] == 5
    assert arguments(durable=False)["x-max-length"] == 5
    assert arguments(expires=2.5)["x-expires"] == 2_500
    assert arguments()["x-overflow"] == "reject-publish"
    assert arguments(at_limit="drop-old")["x-overflow"] == "drop-head"


def test_topics_are_bindings() -> None:
    """The topics of a queue are bindings; the time of its events is an argument, as no publisher knows of the queue."""
    (queue,) = t.queues(SPECS[5])
    assert queue.bindings == ((t.WORK, "broadcast:durable"), (t.EVENTS, "a.*"), (t.EVENTS, "b.#"))
    assert queue.arguments["x-message-ttl"] == 60_000
    assert "x-message-ttl" not in list(t.queues(QueueSpec("q", ttl=60)))[-1].arguments


def _arrival(key: str) -> tuple[str, float]:
    """Follow a message through the exchanges and queues of delays; return where it arrives, and when."""
    exchanges = {each.name: each for each in t.delay_exchanges()}
    seconds = 0.0
    at = t.delay_name(t.DELAY_LEVELS - 1)
    while True:
        forwarded = [
            each.name for each in exchanges.values() for source, pattern in each.sources
            if source == at and _matches(pattern, key)
        ]  # fmt: skip
        number = int(at.rpartition(".")[2]) if at != t.delay_name(-1) else -1
        if number < 0:
            exchange, pattern = t.delay_target("some.queue")
            assert (exchange, _matches(pattern, key)) == (at, True)
            return at, seconds
        queue = t.delay_queue(number)
        waits = [pattern for exchange, pattern in queue.bindings if exchange == at and _matches(pattern, key)]
        assert len(forwarded) + len(waits) == 1
        if waits:
            seconds += queue.arguments["x-message-ttl"] / 1_000
            at = queue.arguments["x-dead-letter-exchange"]
        else:
            (at,) = forwarded


def _matches(pattern: str, key: str) -> bool:
    words = key.split(".")
    parts = pattern.split(".")
    if "#" in parts:
        words, parts = words[: len(parts) - 1], parts[:-1]
    return len(words) == len(parts) and all(map(fnmatch.fnmatchcase, words, parts))


@given(st.floats(0.01, 2_592_000))
def test_a_delay_is_the_sum_of_its_steps(seconds: float) -> None:
    """A message passes the queues of its delay, each once, and arrives not before it, and at most a step later."""
    _, waited = _arrival(t.delay_key(seconds, "some.queue"))
    assert seconds - 1e-6 <= waited <= seconds + t.DELAY_UNIT + 1e-6


def test_what_cannot_be_is_refused() -> None:
    """A name that RabbitMQ cannot have, and a delay that is too long, are refused by name."""
    with pytest.raises(ConfigError, match="255 bytes"):
        list(t.queues(QueueSpec("q" * 255)))
    with pytest.raises(Unsupported, match="a delay of 1e\\+08 s"):
        t.delay_key(1e8, "q")
    with pytest.raises(Unsupported, match="delays of the queue"):
        t.delay_key(1.0, "q" * 230)


def test_the_consumer_timeout_is_for_servers_that_know_it() -> None:
    """The argument for the time that a delivery may stay open is given from 3.11.15 on (pitfall 25)."""
    assert t.timeout_arguments((3, 10, 8), 60) == {}
    assert t.timeout_arguments((3, 11, 15), 60) == t.timeout_arguments((4, 0), 60) == {"x-consumer-timeout": 60_000}
