"""Deliveries of another library's messages: credit, acceptance, give-backs, replies. Without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from redpoll.bus.awaitables import Done
from redpoll.bus.engines.amqp.foreign.handles import DialectConsumer, Then
from redpoll.bus.engines.amqp.foreign.kiwipy import Kiwipy
from redpoll.bus.engines.amqp.foreign.messages import Message
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.records import Publication
from redpoll.errors import Closed, ConfigError, NoRoute, RedpollError, Unsupported
from redpoll.testing import VirtualTime

pytestmark = pytest.mark.asyncio


class FakeMessage:
    """A message, and what became of it."""

    def __init__(self, body: bytes, redelivered: bool = False, reply_to: str | None = "replies") -> None:
        self.body = body
        self.properties = Properties(correlation_id="c", reply_to=reply_to)
        self.redelivered = redelivered
        self.end = ""

    def ack(self) -> None:
        """Note it; a second end is none."""
        self.end = self.end or "ack"

    def nack(self, requeue: bool = True) -> None:
        """Note it."""
        self.end = self.end or ("back" if requeue else "dropped")


class FakeEngine:
    """What a delivery needs of its engine: replies are kept, and confirmed at once, or fail."""

    def __init__(self) -> None:
        self.clock = VirtualTime()
        self.dialect = Kiwipy()
        self.sent: list[Any] = []
        self.error: RedpollError | None = None

    def send(self, message: Message, *, mandatory: bool = False, then: Then = None) -> Awaitable[None]:
        """Take a message."""
        self.sent.append((message.key, self.dialect._decode(message.body), mandatory))
        if then is not None:
            then(self.error)
        return Done(None)


def consumer_of(
    engine: FakeEngine, credit: int = 1, *, accept: bool = False, queue: str = "tasks"
) -> tuple[DialectConsumer, list[Any]]:
    """A consumer, and what it was handed."""
    got: list[Any] = []
    return DialectConsumer(engine, queue, credit, got.append, accept), got


def take(consumer: DialectConsumer, *messages: FakeMessage) -> None:
    """Give messages to a consumer."""
    for message in messages:
        consumer.take(message)  # type: ignore[arg-type]


@pytest.mark.parametrize("accept", [False, True])
async def test_credit(accept: bool) -> None:
    """No more is handed out, and accepted, than the credit allows; the next one as one ends, or as there is more credit."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, 2, accept=accept)
    messages = [FakeMessage(b"[%d, false]" % number) for number in range(5)]
    take(consumer, *messages)
    accepted = "ack" if accept else ""
    assert len(got) == 2
    assert [each.end for each in messages] == [accepted, accepted, "", "", ""]
    await got[0].ack()
    await asyncio.sleep(0)
    assert len(got) == 3
    assert [each.end for each in messages] == ["ack", accepted, accepted, "", ""]
    consumer.set_credit(3)
    assert len(got) == 4
    consumer.set_credit(0)
    await got[1].ack()
    await asyncio.sleep(0)
    assert len(got) == 4


async def test_outcome_is_confirmed_before_the_message_is_gone() -> None:
    """An outcome is sent before the message is acknowledged; a second end counts for nothing."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine)
    message = FakeMessage(b"[7, false]")
    take(consumer, message)
    (delivery,) = got
    assert (delivery.id, delivery.queue, delivery.attempt, delivery.left) == ("c", "tasks", 1, None)
    assert await delivery.ack(Outcome(OutcomeKind.RESULT, Envelope("json", b"[1]"))) is True
    assert engine.sent == [("replies", {"result": [1]}, False)]
    assert message.end == "ack"
    assert await delivery.ack() is False
    assert await delivery.reject() is False
    assert len(engine.sent) == 1


@pytest.mark.parametrize(("error", "end"), [(NoRoute("replies"), "ack"), (Closed("bus"), "")])
async def test_outcome_that_is_not_confirmed(error: RedpollError, end: str) -> None:
    """A task whose sender is gone is done; one whose outcome was not confirmed when the bus was closed goes back."""
    engine = FakeEngine()
    engine.error = error
    consumer, got = consumer_of(engine)
    message = FakeMessage(b"[7, false]")
    take(consumer, message)
    await got[0].ack(Outcome(OutcomeKind.RESULT, Envelope("json", b"[1]")))
    assert message.end == end


async def test_unwanted_reply() -> None:
    """Nothing is sent where no reply is wanted, whatever the end."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, 3)
    messages = [FakeMessage(b"[7, true]"), FakeMessage(b"[7, false]", reply_to=None), FakeMessage(b"[8, true]", True)]
    take(consumer, *messages)
    await got[0].ack()
    await got[1].reject(requeue=False)
    assert not got[2].progress(Envelope("", b"", {"nested": 1}))
    assert got[2].attempt == 2
    assert [each.end for each in messages] == ["ack", "dropped", ""]
    assert engine.sent == []


async def test_result_that_cannot_be_sent() -> None:
    """A result that the other library's encoding does not carry is an exception for the sender; the task is done."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine)
    message = FakeMessage(b"[7, false]")
    take(consumer, message)
    await got[0].ack(Outcome(OutcomeKind.RESULT, Envelope("buffer", b"x")))
    ((_, reply, _),) = engine.sent
    assert "kiwipy cannot encode" in reply["exception"]
    assert message.end == "ack"


async def test_give_backs() -> None:
    """A task goes back at once, after a delay, or after a second where it was rejected."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, 3)
    messages = [FakeMessage(b"[%d, false]" % number) for number in range(3)]
    take(consumer, *messages)
    await got[0].reject()
    await got[1].reject(delay=5)
    await got[2].reject(exclude=True)
    ends = []
    for seconds in (0.0, 1.0, 4.0):
        await engine.clock.advance(seconds)
        ends.append([each.end for each in messages])
    assert ends == [["back", "", ""], ["back", "", "back"], ["back", "back", "back"]]
    assert engine.sent == []


async def test_bad_give_back() -> None:
    """A delay that cannot be is refused, as are successors; the task is still held."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine)
    message = FakeMessage(b"[1, false]")
    take(consumer, message)
    with pytest.raises(ConfigError, match="delay"):
        got[0].reject(delay=-1)
    with pytest.raises(Unsupported, match="successors"):
        got[0].ack(None, [Publication("tasks", Envelope("raw", b""))])
    assert message.end == ""
    assert await got[0].ack() is True


async def test_counted_tries() -> None:
    """A task whose tries are counted is published anew before it is acknowledged; if that fails it goes back as it was."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, 2)
    messages = [FakeMessage(b"[7, false]") for _ in range(2)]
    take(consumer, *messages)
    await got[0].reject(meta={"tries": 1})
    engine.error = NoRoute("tasks")
    await got[1].reject(meta={"tries": 1})
    assert engine.sent == [("kiwipy.tasks", [7, False], True)] * 2
    assert [each.end for each in messages] == ["ack", "back"]


async def test_accepted_call_that_was_not_begun() -> None:
    """An accepted call that is given back cannot go to another server: its caller is told."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, accept=True, queue="rpc:42")
    take(consumer, FakeMessage(b"pause"))
    await got[0].reject(reason="its server was stopped")
    assert engine.sent == [("replies", {"cancelled": "its server was stopped"}, False)]


async def test_unreadable() -> None:
    """A message that cannot be read is dropped, or becomes a dead letter; the next one is handed out."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine)
    bad, good = FakeMessage(b"text"), FakeMessage(b"[1, false]")
    take(consumer, bad, good)
    assert (bad.end, len(got)) == ("dropped", 1)


async def test_sink_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A task that its worker cannot take goes back, later."""

    def sink(_: object) -> None:
        raise ValueError("no")

    engine = FakeEngine()
    consumer = DialectConsumer(engine, "tasks", 1, sink, False)
    message = FakeMessage(b"[1, false]")
    take(consumer, message)
    assert "the sink of a consumer of 'tasks' failed" in caplog.text
    await engine.clock.advance(1.0)
    assert message.end == "back"


async def test_lost_connection() -> None:
    """Deliveries that were not accepted are lost with the connection; those that were are answered on the next one."""
    engine = FakeEngine()
    consumer, got = consumer_of(engine, 2)
    take(consumer, *(FakeMessage(b"[%d, false]" % number) for number in range(3)))
    await got[0].accept()
    told: list[str] = []

    class Listener:
        def lost(self) -> None:
            told.append("lost")

        def cancelled(self, reason: str) -> None:
            """Nothing."""

        def told(self, envelope: Envelope) -> None:
            """Nothing."""

    got[1].listen(Listener())
    consumer.lose()
    assert (got[0].lost, got[1].lost, told) == (False, True, ["lost"])
    assert await got[1].ack() is False
    assert await got[1].accept() is False
    assert await got[0].ack() is True
    assert engine.sent == [("replies", {"result": None}, False)]
    # The third one was never begun: the server hands it out again.
    await asyncio.sleep(0)
    assert len(got) == 2
