"""Connections over nodes: who is at the other end, and what strangers can do."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import GLOBAL, Config, Message, Node, Received, Wiring
from redpoll.errors import LinkError, ProtocolError, Refused, WiringError
from redpoll.wiring import network
from redpoll.wiring.network import NetConnection, config_of
from redpoll.wiring.protocol import CREDIT, DATA, VERSION, WORD, check_answer, decode, encode
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, until

pytestmark = pytest.mark.asyncio


async def ask(node: Node[bytes], wiring: Wiring, word: dict[str, object]) -> dict[str, object]:
    """Ask as another wiring would."""
    answer = await node.request(Message(encode(word), wiring.address, header=WORD))
    return check_answer(decode(answer.data))


HELLO = {"word": "hello", "version": VERSION, "run": b"12345678"}


async def test_connect() -> None:
    """There is one connection to a wiring, whichever end dialled; to nobody and to other nodes there is none."""
    async with Wiring() as a, Wiring() as b:
        connection = await a._net.connect(b.address, PATIENCE)
        assert await a._net.connect(b.address, PATIENCE) is connection
        assert (connection.identity, connection.run) == (b.identity, b._board.run)
        back = await b._net.connect(a.address, PATIENCE)
        assert back.peer.links
        assert len(a._net.connections) == len(b._net.connections) == 1
        with pytest.raises(LinkError):
            await a._net.connect(a.address.__class__("tcp", "127.0.0.1", free_port()), PATIENCE)
        async with Node(lambda message: b"what?", port=0) as node:
            with pytest.raises(ProtocolError):
                await a._net.connect(node.address, PATIENCE)


@pytest.mark.usefixtures("apart")
async def test_whether_a_pipe_is_carried() -> None:
    """A connection is lost whose other end says that it no longer has a pipe of it, and not where that says anything else."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        await b.create_queue("Q", scope=GLOBAL)
        await a.bind("E", "Q")
        (pipe,) = exchange.pipes
        (connection,) = (each for each in b._net.connections.values() if pipe.number in each.incoming)
        carries = a._board.words.pop("carries")
        await connection.check_pipe(pipe.number)
        assert connection.up
        a._board.words["carries"] = carries
        await connection.check_pipe(pipe.number)
        assert connection.up
        carrier = pipe.connection
        assert isinstance(carrier, NetConnection)
        del a._net.connections[carrier.peer]
        await connection.check_pipe(pipe.number)
        assert not connection.up


async def test_what_a_resumed_session_is_asked() -> None:
    """Who resumes its session and answers nothing is asked one question at a time, and none before it has the connection."""
    told: list[object] = []
    answers = asyncio.Event()

    async def silent(message: Received[bytes]) -> None:
        told.append(decode(message.data)["word"])
        if told[-1] == "carries":
            await answers.wait()

    async with Wiring() as wiring, Node(silent, listen=False, slots=8) as node:
        await ask(node, wiring, HELLO)
        (connection,) = wiring._net.connections.values()
        wiring._net.resumed(connection.peer)
        # It is told of this behind a question, if there was one.
        await node.send(Message(b"", wiring.address, header=DATA.pack(b"D", 7, 0, 1, 1, 0)))
        await until(lambda: "stray" in told)
        await ask(node, wiring, HELLO)
        assert told == ["stray"]
        await ask(node, wiring, {"word": "unbind", "exchange": "E", "queue": "Q"})
        for _ in range(4):
            told.clear()
            wiring._net.resumed(connection.peer)
            await until(lambda: told == ["carries"])
            assert len(wiring._board.tasks) == 1
        answers.set()
        await until(lambda: not wiring._board.tasks)
        assert connection.up


async def test_strangers() -> None:
    """Who has not said hello, speaks another version, or says what nobody knows, is refused and changes nothing."""
    async with Wiring() as wiring, Node(listen=False) as node:
        where = wiring.address
        await wiring.create_queue("Q")
        for header in (b"", b"?", WORD, DATA.pack(b"D", 1, 0, 1, 1, 0), CREDIT.pack(b"C", 1, 1)):
            with pytest.raises(Refused):
                await node.send(Message(b"x", where, header=header))
        with pytest.raises(Refused, match="say hello first"):
            await ask(node, wiring, {"word": "open"})
        with pytest.raises(Refused, match="version 99"):
            await ask(node, wiring, HELLO | {"version": 99})
        assert not wiring._net.connections
        told = await ask(node, wiring, {"word": "describe"})
        assert told["address"] == str(where)
        await ask(node, wiring, HELLO)
        with pytest.raises(Refused, match="unknown word 'dance'"):
            await ask(node, wiring, {"word": "dance"})
        for word in ({"word": "bind", "exchange": "E", "queue": "Q", "here": False}, {"word": "open", "pipe": 1}):
            with pytest.raises((WiringError, Refused)):
                await ask(node, wiring, dict(word))
        await node.send(Message(b"x", where, header=DATA.pack(b"D", 9, 0, 1, 1, 0)))
        await node.send(Message(DATA.pack(b"D", 9, 0, 1, 1, 0) + b"x", where))
        await node.send(Message(CREDIT.pack(b"C", 9, 1), where))


async def test_pipes_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends by a pipe that is not known is told so once for each, and for so many of them."""
    monkeypatch.setattr(network, "MAX_STRAYS", 3)
    told: list[object] = []
    async with Wiring() as wiring, Node(lambda message: told.append(decode(message.data)), listen=False) as node:
        where = wiring.address
        await ask(node, wiring, HELLO)
        for number in (7, 7, 8, 9, 10):
            await node.send(Message(DATA.pack(b"D", number, 0, 1, 1, 0) + b"x", where))
        await until(lambda: len(told) == 3)
        assert told == [{"word": "stray", "pipe": number} for number in (7, 8, 9)]
        await ask(node, wiring, HELLO)
        # Of one that it does not have either nothing comes.
        await node.send(Message(encode({"word": "stray", "pipe": 7}), where, header=WORD))
        assert len(wiring._net.connections) == 1


async def test_misbehaves() -> None:
    """A sender that does not keep to its credit loses what is too much; one whose batches make no sense is refused."""
    async with directory() as names, Wiring(names.address) as wiring, Node(listen=False) as node:
        queue = await wiring.create_queue("Q", scope=GLOBAL)
        await ask(node, wiring, HELLO)
        word = {
            "word": "open",
            "pipe": 1,
            "exchange": "E",
            "is_global": False,
            "queue": "Q",
            "first": 0,
            "at": 0,
            "missed": 0,
        }
        answer = await ask(node, wiring, word)
        assert (answer["messages"], answer.get("expected")) == (10_000, None)
        count = 10_001
        await node.send(Message(b"x" * count, wiring.address, header=DATA.pack(b"D", 1, 0, count, count, 1)))
        assert queue.receive_nowait() is None
        with pytest.raises(Refused):
            await node.send(Message(b"xyz", wiring.address, header=DATA.pack(b"D", 1, 0, 5, 5, 1)))
        await node.send(Message(b"xyz", wiring.address, header=DATA.pack(b"D", 1, 2, 5, 3, 1)))
        assert await queue.receive(PATIENCE) == b"x"
        assert queue.stats.missing == 2
        with pytest.raises(Refused):
            await ask(node, wiring, word | {"first": -1, "pipe": 2})
        await node.send(Message(encode({"word": "end", "pipe": 1}), wiring.address, header=WORD))
        await until(lambda: not queue.stats.pipes)
        await node.send(Message(encode({"word": "bye"}), wiring.address, header=WORD))
        assert not wiring._net.connections


async def test_own_options() -> None:
    """The node under a wiring has what wiring needs, whatever a Config says of that."""
    config = config_of(
        Config(serializer="json", timeout=1.0, slots=1, send_queue_limit=1, max_message_size=10), {"port": 0}
    )
    assert (config.serializer, config.timeout, config.slots, config.port) == ("raw", None, 65_535, 0)
    assert config.max_message_size > 64 * 1024
