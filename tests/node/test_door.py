"""The door of a node for layers: batches without futures, lists of a turn, the layer's own flow, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redpoll import Address, Config, HandlerFailed, Message, NotSent, PeerLost, Received, RedpollError
from redpoll.errors import NoHandler
from redpoll.node.door import (
    PIECE_FIELDS,
    Batch,
    LayerNode,
    Peer,
    Piece,
    ask,
    host_of,
    is_linked,
    local_host,
    peer_of,
    remote_of,
    why_unreachable,
)
from tests.node.support import until, within

pytestmark = pytest.mark.asyncio

COUNT = 3000


class Layer(LayerNode):
    """A layer that keeps what it is given, and is done with all that does not say otherwise."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Config(timeout=None, slots=4096, node_slots=8192, window=4096, **options))
        self.turns: list[list[bytes]] = []
        self.kept: list[Received[Any]] = []
        self.sessions: list[tuple[str, Peer]] = []

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Keep those with the header "keep", answer those with the header "ask", raise at "raise"."""
        self.turns.append([message.data for message in messages])
        assert len({peer_of(message) for message in messages}) == 1
        done = []
        for message in messages:
            if message.header == b"keep":
                self.kept.append(message)
            elif message.header == b"ask":
                self.conclude(message, message.data + b"!" if message.data else self._later(message))
            elif message.header == b"refuse":
                self.refuse(message, NoHandler, "not here")
            elif message.header == b"raise":
                raise ValueError("of the layer")
            else:
                done.append(message)
        return done

    async def _later(self, message: Received[Any]) -> bytes:
        await asyncio.sleep(0)
        return str(remote_of(message).host == local_host(message)).encode()

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self.sessions.append(("renewed" if renewed else "began", peer))

    def _session_resumed(self, peer: Peer) -> None:
        self.sessions.append(("resumed", peer))

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self.sessions.append(("ended", peer))

    @property
    def handled(self) -> list[bytes]:
        """All that it was given, in order."""
        return [data for turn in self.turns for data in turn]


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Layer, Layer, Peer]]:
    """Two layers, and the peer that the first one knows the second by."""
    async with Layer(listen=False, **options) as one, Layer(port=0, **options) as other:
        await within(one.ready(other.address))
        await until(lambda: one.sessions, "the session")
        yield one, other, one.sessions[0][1]


async def ended(batches: list[Batch]) -> Batch:
    """Wait for the end of one batch."""
    await until(lambda: batches, "the end of the batch")
    (batch,) = batches
    return batch


@pytest.mark.parametrize("acknowledge", [True, False])
async def test_a_batch_ends_once(acknowledge: bool) -> None:
    """Thousands of records of one turn arrive in order, and one call says that all of them have ended."""
    async with pair() as (one, other, peer):
        ends: list[Batch] = []
        records = [(b"", b"%d" % number) for number in range(COUNT)]
        batch = one.send_batch(peer, records, ends.append, acknowledge=acknowledge)
        assert (batch.count, ends) == (COUNT, [])
        assert await ended(ends) is batch
        await until(lambda: len(other.handled) == COUNT, "the records")
        assert (batch.open, batch.failed, batch.taken_back) == (0, [], [])
        assert other.handled == [data for _, data in records]
        assert len(other.turns) < COUNT / 10
        assert one.stats().sent == COUNT


async def test_a_batch_of_none() -> None:
    """A batch without records ends too, and not inside of the call that made it."""
    async with pair() as (one, _, peer):
        ends: list[Batch] = []
        batch = one.send_batch(peer, (), ends.append)
        assert not ends
        assert await ended(ends) is batch


async def test_records_that_fail() -> None:
    """A batch names the records that failed, each with its error."""
    async with pair() as (one, _, peer):
        ends: list[Batch] = []
        one.send_batch(peer, [(b"", b"0"), (b"refuse", b"1"), (b"", b"2")], ends.append)
        batch = await ended(ends)
        assert [(number, type(error)) for number, error in batch.failed] == [(1, NoHandler)]


async def test_what_was_not_sent_is_taken_back() -> None:
    """What is beyond the window is taken back in order, and the batch ends with the rest."""
    async with pair() as (one, other, peer):
        ends: list[Batch] = []
        batch = one.send_batch(peer, [(b"keep", b"%d" % number) for number in range(5000)], ends.append)
        await until(lambda: len(other.kept) == 4096, "a full window")
        assert one.room(peer) == 0
        back = one.take_back(batch)
        assert back == batch.taken_back == list(range(4096, 5000))
        assert one.take_back(batch) == []
        assert len(one.sendings(peer)) == 4096
        for message in other.kept:
            message.release()
        assert (await ended(ends)).failed == []
        assert len(other.handled) == 4096


async def test_all_is_taken_back() -> None:
    """A batch of which nothing was sent ends when all of it is taken back."""
    async with Layer(listen=False) as one, Layer(port=0) as other:
        await within(one.ready(other.address))
        peer = one.sessions[0][1]
        await other.stop(0)
        await until(lambda: not is_linked(peer), "the loss of the link")
        ends: list[Batch] = []
        batch = one.send_batch(peer, [(b"", b"0"), (b"", b"1")], ends.append)
        assert [each.stage for each in one.queued(peer)] == [0, 0]
        assert one.take_back(batch) == [0, 1]
        assert (await ended(ends)).failed == []


async def test_the_layer_says_when_it_takes_more() -> None:
    """Messages that a layer keeps hold the window of their sender, until it releases them."""
    async with pair() as (one, other, peer):
        roomy: list[None] = []
        one.send_batch(peer, [(b"keep", b"")] * 4096, lambda _: None)
        await until(lambda: len(other.kept) == 4096, "a full window")
        one.when_room(peer, lambda: roomy.append(None))
        await asyncio.sleep(0)
        assert (one.room(peer), roomy) == (0, [])
        for message in other.kept[:100]:
            message.release()
        await until(lambda: roomy, "room")
        assert one.room(peer) == 100
        for message in other.kept[100:]:
            message.release()


async def test_words_are_answered() -> None:
    """A layer answers a request at once or later, and asks a peer whatever its address means."""
    async with pair() as (one, other, peer):
        assert (await within(ask(one, peer, b"now", header=b"ask", timeout=5))).data == b"now!"
        assert (await within(ask(one, peer, b"", header=b"ask", timeout=5))).data == b"True"
        assert host_of(peer) == "127.0.0.1"
        assert other.is_connected


async def test_a_layer_that_raises() -> None:
    """What was not ended when a layer raised is refused, and the hook is told."""
    async with pair() as (one, other, _):
        told: list[BaseException] = []
        other.events.handler_failed = lambda _, error: told.append(error)
        with pytest.raises(HandlerFailed, match="of the layer"):
            await within(one.send(Message(b"", other.address, header=b"raise")))
        assert [str(error) for error in told] == ["of the layer"]


class One(Piece):
    """A piece that remembers its end."""

    __slots__ = (*PIECE_FIELDS, "ends")

    def __init__(self) -> None:
        self.ends: list[BaseException | None] = []
        self.load(b"keep", b"x" * 100)

    def settle(self, answer: Any, error: BaseException | None) -> None:
        self.ends.append(error)


async def test_a_piece_by_itself() -> None:
    """A piece says how far it is, and can be withdrawn as long as it is not over."""
    async with pair() as (one, other, peer):
        first, second = One(), One()
        before = first.untouched
        one.submit(peer, first, at_once=True)
        one.submit(peer, second)
        assert one.sendings(peer) == [first, second]
        await until(lambda: len(other.kept) == 2, "both")
        assert (before, first.untouched, first.unfinished) == (True, False, False)
        one.withdraw(second)
        assert (second.over, second.ends) == (True, [])
        other.kept[0].release()
        await until(lambda: first.ends, "the end")
        assert (first.over, first.ends) == (True, [None])
        other.kept[1].release()


async def test_sessions_begin_resume_and_end() -> None:
    """A session that survives its link is resumed; one that does not ends, and another begins."""
    async with pair(resume=30) as (one, other, peer):
        for connection in list(other._peers.connections):
            connection.give_up(PeerLost(None, "cut"))
        await until(lambda: len(one.sessions) == 2, "the next link")
        await until(lambda: len(other.sessions) == 2, "the next link there")
        assert one.sessions == [("began", peer), ("resumed", peer)]
        assert [word for word, _ in other.sessions] == ["began", "resumed"]
    assert one.sessions[-1] == ("ended", peer)


async def test_why_a_peer_is_not_reached() -> None:
    """The last error of dialling an address is known, and nothing is of one that was never dialled."""
    async with Layer(listen=False) as one:
        nowhere = Address.parse("127.0.0.1:1")
        assert why_unreachable(one, nowhere) is None
        future = one.send(Message(b"", nowhere), timeout=5)
        await until(lambda: why_unreachable(one, nowhere), "an attempt")
        future.cancel()
        with pytest.raises(NotSent):
            await within(one.send(Message(b"", nowhere), dial="once"))
