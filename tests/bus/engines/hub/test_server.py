"""What a hub answers to requests that it cannot carry out, and what it says to clients that break the rules."""

from __future__ import annotations

from typing import Any

import pytest

import redpoll
from redpoll import Message, Node
from redpoll.bus import QueueSpec
from redpoll.bus.broker.queues import Queues
from redpoll.bus.broker.work import Work
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.handles import packed
from redpoll.bus.engines.hub.store import MemoryStore
from redpoll.bus.envelope import Envelope
from redpoll.errors import BusError
from tests.bus.engines.hub.support import Running, running
from tests.bus.engines.hub.test_hub import HELLO, body
from tests.node.support import PATIENCE, until

PAYLOAD = packed(Envelope("raw", b"x"))
PLAIN = (0, 0.0, None, None, None, True, False, None)


class Client:
    """A client that says what it likes, and keeps what it is answered."""

    def __init__(self, hub: Running) -> None:
        self.heard: list[Any] = []
        self.node: Node[Any] = Node(self._take, listen=False, serializer="raw")
        self._address = hub.hub.address

    def _take(self, message: Message[Any]) -> None:
        self.heard += p.unpack(message.data, p.FROM_HUB)

    async def say(self, *records: object) -> None:
        """Send records."""
        await self.node.send(Message(body(*records), self._address), timeout=PATIENCE)

    async def answer(self, request: int) -> tuple[int, Any]:
        """Wait for the answer to a request: its kind, and the value or the error."""
        await until(lambda: self._answers(request), "an answer")
        (kind, _, value), *_ = self._answers(request)
        return kind, p.rebuild_error(value) if kind == p.FAILED else value

    def _answers(self, request: int) -> list[Any]:
        return [each for each in self.heard if each[0] in {p.REPLY, p.FAILED} and each[1] == request]


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [TypeError("a defect"), ValueError("a defect"), KeyError("a defect")])
async def test_a_defect_of_the_hub(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its traceback, and answered as an internal error; the client goes on, and so does the hub."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    async def fail_later(*_: Any) -> None:
        raise error

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            monkeypatch.setattr(Queues, "pause", fail)
            monkeypatch.setattr(Work, "consume", fail)
            monkeypatch.setattr(MemoryStore, "check", fail_later)
            engine: Any = bus.engine
            for verb, what in (
                (lambda: bus.queues.pause("q"), "'pause'"),
                (lambda: engine.consume("q"), f"{p.CONSUME}"),
                (engine.check, "'check'"),
            ):
                with pytest.raises(BusError, match=f"internal error of the hub at {what}"):
                    await verb()
            assert caplog.text.count(repr(error)[:4]) >= 3
            assert caplog.text.count("Traceback") == 3
            assert await bus.healthy()


@pytest.mark.asyncio
async def test_what_breaks_the_rules_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for which the hub expels its client fails with the reason; the client is back, and does not repeat it."""
    expelled: list[object] = []
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            server = hub.hub
            expel = server._expel

            def count(*each: Any) -> None:
                expelled.append(each)
                expel(*each)

            monkeypatch.setattr(server, "_expel", count)
            engine: Any = bus.engine
            with pytest.raises(redpoll.NotConfirmed, match="expected the settings of a queue, not \\['nonsense'\\]"):
                await engine._call("declare", {"nonsense": 1}, False)
            await bus.queues.declare("q")
            assert len(expelled) == 1


@pytest.mark.asyncio
async def test_numbers_of_publishes() -> None:
    """Two publishes that wait for room are not taken for each other: each has a number, and none is used twice."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare(QueueSpec("q", max_length=1, topics=("s",)))
            await bus.tasks.submit(1, queue="q")
            for number, again in (
                (7, [p.PUBLISH, 7, "q", PAYLOAD, False, *PLAIN]),
                (8, [p.EVENT, 8, "s", PAYLOAD, False, 0, None]),
                (0, [p.PUBLISH, 0, "q", PAYLOAD, False, *PLAIN]),
            ):
                client = Client(hub)
                async with client.node:
                    await client.say([p.HELLO, p.VERSION, f"client {number}", ""])
                    if number:
                        await client.say([p.PUBLISH, number, "q", PAYLOAD, False, *PLAIN])
                    await client.say(again)
                    kind, error = await client.answer(0)
                    assert (kind, type(error)) == (p.FAILED, redpoll.ProtocolError)
                    assert str(error).startswith(f"protocol error: request {number} ")
            assert (await bus.queues.inspect("q")).waiting == 0


@pytest.mark.asyncio
async def test_a_client_is_told_what_it_did() -> None:
    """A client whose call has wrong arguments is told which, before its link is closed."""
    with running() as hub:
        for arguments, problem in (
            (["q"], "call 'browse' has 1 arguments, 3 expected"),
            ([5, "ready", 1], "argument 1 of call 'browse' has the wrong type int: 5"),
        ):
            client = Client(hub)
            async with client.node:
                await client.say(HELLO, [p.CALL, 1, "browse", arguments])
                _, error = await client.answer(0)
                assert (type(error), str(error)) == (redpoll.ProtocolError, f"protocol error: {problem}")
        async with redpoll.connect(hub.url) as bus:
            with pytest.raises(redpoll.UsageError, match="argument 2 of call 'pause' has the wrong type str: 'yes'"):
                await bus.engine.pause("q", "yes")  # type: ignore[arg-type]
            assert await bus.healthy()
