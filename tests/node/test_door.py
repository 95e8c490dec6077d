"""The door of a node for layers: records without futures, lists of a turn, the layer's own flow, sessions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from redpoll import (
    Address,
    Closed,
    Config,
    HandlerFailed,
    Message,
    Node,
    NotSent,
    PeerLost,
    Received,
    RedpollError,
    UsageError,
)
from redpoll.errors import NoHandler
from redpoll.node import dispatch
from redpoll.node.door import (
    PIECE_FIELDS,
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
from redpoll.transport.writing import EARLY_FLUSH, PROMPT_ACK_SIZE
from tests.node.support import turns, until, within

pytestmark = pytest.mark.asyncio

COUNT = 3000


class Batch:
    """Records that were posted together, how many of them have not ended, and those that failed, each with its error."""

    def __init__(self, done: Callable[[Batch], object]) -> None:
        self.count = self.open = 0
        self.failed: list[tuple[int, BaseException]] = []
        self._done = done
        self._loop = asyncio.get_running_loop()

    def ended(self, number: int, error: BaseException | None) -> None:
        """Take the end of one."""
        if error is not None:
            self.failed.append((number, error))
        self.open -= 1
        if not self.open:
            self._loop.call_soon(self._done, self)


class Layer(LayerNode):
    """A layer that keeps what it is given, and is done with all that does not say otherwise."""

    def __init__(self, **options: Any) -> None:
        options = {"port": 0, **options} if options.get("listen", True) else options
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
            elif message.header == b"block":
                time.sleep(0.1)
                done.append(message)
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

    def post_all(
        self,
        peer: Peer,
        records: list[tuple[bytes, bytes]],
        done: Callable[[Batch], object],
        *,
        acknowledge: bool = True,
    ) -> Batch:
        """Post records, each a header and a body; call a function when all have ended."""
        batch = Batch(done)
        batch.count = batch.open = len(records)
        for number, (header, body) in enumerate(records):
            self.post(peer, body, partial(batch.ended, number), header=header, acknowledge=acknowledge)
        return batch

    @property
    def handled(self) -> list[bytes]:
        """All that it was given, in order."""
        return [data for turn in self.turns for data in turn]


class Patient(Layer):
    """A layer whose acknowledgements wait for its records."""

    def __init__(self, patience: float = 600.0, **options: Any) -> None:
        super().__init__(**options)
        self.patience = patience


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
async def test_each_record_ends_once(acknowledge: bool) -> None:
    """Thousands of records of one turn arrive in order, and each is said to have ended once."""
    async with pair() as (one, other, peer):
        ends: list[Batch] = []
        records = [(b"", b"%d" % number) for number in range(COUNT)]
        batch = one.post_all(peer, records, ends.append, acknowledge=acknowledge)
        assert (batch.count, ends) == (COUNT, [])
        assert await ended(ends) is batch
        await until(lambda: len(other.handled) == COUNT, "the records")
        assert (batch.open, batch.failed) == (0, [])
        assert other.handled == [data for _, data in records]
        assert len(other.turns) < COUNT / 10
        assert one.stats().sent == COUNT


async def test_acknowledgements_wait_for_a_record() -> None:
    """A patient layer writes few acknowledgements, of few bytes, with its next record, or when its patience is over."""
    async with Layer(listen=False) as one, Patient() as other:
        await within(one.ready(other.address))
        await until(lambda: one.sessions and other.sessions, "the sessions")
        peer, back = one.sessions[0][1], other.sessions[0][1]
        ends: list[Batch] = []
        one.post_all(peer, [(b"", b"first")], ends.append)
        await until(lambda: other.handled == [b"first"], "the record")
        await turns(200)
        assert not ends
        other.post_all(back, [(b"", b"answer")], lambda _: None)
        await ended(ends)
        assert one.handled == [b"answer"]
        one.post_all(peer, [(b"", b"%d" % number) for number in range(EARLY_FLUSH)], ends.append)
        await until(lambda: len(ends) == 2, "many acknowledgements, which wait for nothing")
        one.post_all(peer, [(b"", b"large" + bytes(PROMPT_ACK_SIZE))], ends.append)
        await until(lambda: len(ends) == 3, "the acknowledgement of many bytes")
    async with Layer(listen=False) as one, Patient(0.01) as other:
        await within(one.ready(other.address))
        await until(lambda: one.sessions, "the session")
        ends = []
        one.post_all(one.sessions[0][1], [(b"", b"alone")], ends.append)
        await ended(ends)


async def test_acknowledgements_wait_for_as_long_as_the_first_ones() -> None:
    """An acknowledgement that came after others were written with a record is written alone only later than these."""
    async with Layer(listen=False) as one, Patient() as other:
        await within(one.ready(other.address))
        await until(lambda: one.sessions and other.sessions, "the sessions")
        peer, back = one.sessions[0][1], other.sessions[0][1]
        (connection,) = other._peers.connections
        first: list[Batch] = []
        second: list[Batch] = []
        one.post_all(peer, [(b"", b"first")], first.append)
        await until(lambda: other.handled, "the first record")
        other.post_all(back, [(b"", b"answer")], lambda _: None)
        await ended(first)
        one.post_all(peer, [(b"", b"second")], second.append)
        await until(lambda: len(other.handled) == 2, "the second record")
        # As the timer does that was set for the first one.
        connection._write_late()
        await turns(200)
        assert not second
        connection._write_late()
        await ended(second)


async def test_nothing_else_waits_for_a_record() -> None:
    """A patient layer writes at once what else a read causes: refusals, and messages that waited for the window."""
    async with Layer(listen=False, keepalive=600.0) as one, Patient(keepalive=600.0) as other:
        await within(one.ready(other.address))
        await until(lambda: one.sessions and other.sessions, "the sessions")
        peer, back = one.sessions[0][1], other.sessions[0][1]
        ends: list[Batch] = []
        one.post_all(peer, [(b"refuse", b"")], ends.append)
        assert [type(error) for _, error in (await ended(ends)).failed] == [NoHandler]
        other.post_all(back, [(b"keep", b"")] * 4096, lambda _: None)
        await until(lambda: len(one.kept) == 4096, "a full window")
        other.post_all(back, [(b"", b"waited")], lambda _: None)
        for message in one.kept:
            message.release()
        await until(lambda: one.handled[-1:] == [b"waited"], "the record that waited")


async def test_records_that_fail() -> None:
    """A record that failed ends with its error, and those beside it without one."""
    async with pair() as (one, _, peer):
        ends: list[Batch] = []
        one.post_all(peer, [(b"", b"0"), (b"refuse", b"1"), (b"", b"2")], ends.append)
        batch = await ended(ends)
        assert [(number, type(error)) for number, error in batch.failed] == [(1, NoHandler)]


async def test_what_was_not_sent_is_taken_back() -> None:
    """What is beyond the window waits in order and is taken back, without being settled; what was sent ends."""
    async with pair() as (one, other, peer):
        ends: list[Batch] = []
        one.post_all(peer, [(b"keep", b"")] * 4096, ends.append)
        await until(lambda: len(other.kept) == 4096, "a full window")
        assert one.room(peer) == 0
        pieces = [One() for _ in range(100)]
        for piece in pieces:
            one.submit(peer, piece)
        assert list(one.queued(peer)) == pieces
        assert all(piece.untouched for piece in pieces)
        for piece in pieces:
            one.withdraw(piece)
        assert len(one.sendings(peer)) == 4096
        assert [piece.over for piece in pieces] == [True] * 100
        for message in other.kept:
            message.release()
        assert (await ended(ends)).failed == []
        assert len(other.handled) == 4096
        assert not any(piece.ends for piece in pieces)


async def test_the_layer_says_when_it_takes_more() -> None:
    """Messages that a layer keeps hold the window of their sender, until it releases them."""
    async with pair() as (one, other, peer):
        roomy: list[None] = []
        one.post_all(peer, [(b"keep", b"")] * 4096, lambda _: None)
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


class Wrong(Layer):
    """A layer that returns or raises what it must not."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way: str | None = way

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Do so once, then handle messages."""
        way, self.way = self.way, None
        if way == "cancelled":
            raise asyncio.CancelledError
        if way == "coroutine":
            return self._list(messages)  # type: ignore[return-value]
        return messages if way is None else None  # type: ignore[return-value]

    async def _list(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        return messages


@pytest.mark.parametrize("way", ["none", "coroutine", "cancelled"])
async def test_a_layer_that_returns_no_list(way: str) -> None:
    """What a layer neither returned nor ended is refused; its slots are free and its link is up."""
    async with Layer(listen=False) as one, Wrong(way) as other:
        await within(one.ready(other.address))
        with pytest.raises(RedpollError) as caught:
            await within(one.send(Message(b"", other.address)))
        assert not isinstance(caught.value, PeerLost)
        assert other._peers.pool.used == 0
        await within(one.send(Message(b"", other.address)))
        assert len(one.sessions) == 1


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


async def test_a_piece_that_the_node_has_is_not_discarded() -> None:
    """A piece is discarded before the node has it or once it is over; otherwise it has to be withdrawn."""
    async with Layer(listen=False) as one, Layer() as other:
        await within(one.ready(other.address))
        peer = one.sessions[0][1]
        await other.stop(0)
        await until(lambda: not is_linked(peer), "the loss of the link")
        unsent, waiting = One(), One()
        unsent.discard()
        assert unsent.over
        one.submit(peer, waiting)
        with pytest.raises(UsageError, match="the piece was submitted already"):
            waiting.discard()
        assert (list(one.queued(peer)), waiting.over) == ([waiting], False)
        one.withdraw(waiting)
        waiting.discard()
        assert (waiting.over, len(peer.queue)) == (True, 0)


async def test_a_forgotten_peer_is_known_again() -> None:
    """A peer that the node forgot is dialled again for a record or a piece, and found under the same object."""
    async with Layer(listen=False) as one, Layer(identity=b"B" * 16) as other:
        await within(one.ready(other.address))
        peer, port = one.sessions[0][1], other.address.port
        await other.stop(0)
        await until(lambda: not is_linked(peer), "the loss of the link")
        one._peers.recent._drop(peer, False)  # as when it was remembered long enough
        assert one.peers == ()
        async with Layer(port=port, identity=b"B" * 16) as again:
            ends: list[Batch] = []
            one.post_all(peer, [(b"", b"0"), (b"", b"1")], ends.append)
            assert (await ended(ends)).failed == []
            assert again.handled == [b"0", b"1"]
            assert is_linked(peer)
            await again.stop(0)
        await until(lambda: not is_linked(peer), "the loss of the link")
        one._peers.recent._drop(peer, False)
        async with Layer(port=port, identity=b"B" * 16) as last:
            piece = One()
            one.submit(peer, piece, first=True)
            await until(lambda: last.kept, "the piece")
            last.kept[0].release()
            await until(lambda: piece.ends, "the end")
            assert piece.ends == [None]


async def test_nothing_is_sent_by_a_node_that_was_stopped() -> None:
    """Pieces and records of a closed node end with NotSent, caused by Closed, and its peers are not kept."""
    async with pair() as (one, _, peer):
        await one.stop()
        ends: list[Batch] = []
        batch = one.post_all(peer, [(b"", b"0"), (b"", b"1")], ends.append)
        assert (batch.open, ends) == (0, [])
        failures = (await ended(ends)).failed
        assert [number for number, _ in failures] == [0, 1]
        piece, first = One(), One()
        one.submit(peer, piece)
        one.submit(peer, first, first=True)
        for error in (*(error for _, error in failures), *piece.ends, *first.ends):
            assert isinstance(error, NotSent)
            assert isinstance(error.__cause__, Closed)
        assert (piece.over, len(piece.ends), len(first.ends), len(peer.queue)) == (True, 1, 1, 0)
        roomy: list[None] = []
        one.when_room(peer, lambda: roomy.append(None))
        await until(lambda: roomy, "the call")
        assert peer.idle


async def test_only_a_started_node_sends_on_its_loop() -> None:
    """A layer sends in the loop of its node; a node that was not started is closed."""
    async with pair() as (one, _, peer):

        async def elsewhere() -> None:
            with pytest.raises(UsageError, match="started on another"):
                one.submit(peer, One())
            with pytest.raises(UsageError, match="started on another"):
                one.post_all(peer, [(b"", b"")], lambda _: None)

        await asyncio.to_thread(asyncio.run, elsewhere())
        with pytest.raises(Closed):
            Layer(listen=False).submit(peer, One())


async def test_room_that_is_there_is_told() -> None:
    """The function for room is called soon where there is some, and where the session is over; not from inside."""
    async with pair() as (one, other, peer):
        calls: list[str] = []
        one.when_room(peer, lambda: calls.append("room"))
        assert calls == []
        await until(lambda: calls, "the call")
        await other.stop(0)
        await until(lambda: not is_linked(peer), "the loss of the link")
        one.when_room(peer, lambda: calls.append("over"))
        await until(lambda: len(calls) == 2, "the call")
        assert (calls, one.room(peer), peer.writable_waiters) == (["room", "over"], 0, [])


async def test_room_is_waited_for_while_a_session_lasts() -> None:
    """A peer that may return is waited for, and the end of its session ends that."""
    async with pair(resume=30) as (one, other, peer):
        other._listener.close()  # type: ignore[union-attr]
        for connection in list(one._peers.connections):
            connection.give_up(PeerLost(None, "cut"))
        await until(lambda: not is_linked(peer), "the loss of the link")
        calls: list[None] = []
        one.when_room(peer, lambda: calls.append(None))
        await turns(20)
        assert (calls, len(peer.writable_waiters)) == ([], 1)
        one._peers.sessions.end(peer, PeerLost(None, "over"))
        await until(lambda: calls, "the call")
        assert peer.writable_waiters == []


def _answers(peer: Any) -> list[Any]:
    return [each for link in peer.links for each in link.transfers if each.answer]


async def test_all_that_has_not_ended_is_listed() -> None:
    """Sendings include what waits for the transport and requests that wait for their answer, and no answers."""
    async with pair(fragment_size=65_536) as (one, other, peer):
        batch = one.post_all(peer, [(b"keep", b"x" * 60_000)] * 3, lambda _: None, acknowledge=False)
        assert batch.open
        assert len(one.sendings(peer)) == batch.open
        await until(lambda: not batch.open, "the end of the batch")
        answer = ask(one, peer, b"x" * 1_000_000, header=b"keep", timeout=5)
        await until(lambda: len(other.kept) == 4, "the request")
        other.kept[3].release()
        message = other.kept[3]
        await until(lambda: peer.requests, "the acknowledgement")
        assert [id(each) for each in one.sendings(peer)] == [id(answer)]
        there = peer_of(message)
        responding = asyncio.ensure_future(message.respond(b"y" * 1_000_000))
        if not _answers(there):  # an eager task has begun
            await asyncio.sleep(0)
        assert _answers(there)
        assert other.sendings(there) == []
        await within(responding)
        assert len((await within(answer)).data) == 1_000_000
        for each in other.kept[:3]:
            each.release()


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


async def test_a_session_that_begins_anew_takes_what_is_sent_at_once() -> None:
    """What a layer sends when the other node was started again reaches that run, and does not fail with the former one's."""
    identity = b"B" * 16
    ends: list[Batch] = []

    class Greeter(Layer):
        def _session_began(self, peer: Peer, renewed: bool) -> None:
            super()._session_began(peer, renewed)
            self.post_all(peer, [(b"", b"renewed" if renewed else b"new")], ends.append)

    async with Greeter(listen=False, resume=20.0) as one:
        async with Layer(port=0, identity=identity, resume=20.0) as other:
            address = other.address
            await within(one.ready(address))
            await until(lambda: other.handled == [b"new"], "the first greeting")
            # It ends without a goodbye, as a process that was killed.
            for connection in list(other._peers.connections):
                assert connection.transport is not None
                connection.transport.abort()
            assert other._listener is not None
            other._listener.close()
            async with Layer(port=address.port, identity=identity, resume=20.0) as later:
                await until(lambda: b"renewed" in later.handled, "the second greeting")
                assert one.sessions[-1][0] == "renewed"
                assert not any(batch.failed for batch in ends)


@pytest.mark.parametrize("greets", ["accepting", "dialling"])
@pytest.mark.parametrize("size", [3, 3_000_000])
async def test_a_session_that_begins_takes_what_is_sent_at_once(greets: str, size: int) -> None:
    """What a layer sends from within the call that tells it of a session is written, at both ends of the link."""
    ends: list[Batch] = []

    class Greeter(Layer):
        def _session_began(self, peer: Peer, renewed: bool) -> None:
            super()._session_began(peer, renewed)
            self.post_all(peer, [(b"", bytes(size))] * 3, ends.append)

    accepting, dialling = (Greeter, Layer) if greets == "accepting" else (Layer, Greeter)
    async with accepting(port=0) as one, dialling(listen=False) as other:
        ready = asyncio.ensure_future(other.ready(one.address))
        await until(lambda: len((other if greets == "accepting" else one).handled) == 3, "the greeting")
        assert not (await ended(ends)).failed
        await within(ready)


async def test_a_blocked_loop_names_no_layer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning of a loop that was blocked while messages arrived names no method of the layer that took them."""
    monkeypatch.setattr(dispatch, "_WATCH_EVERY", 0.01)
    monkeypatch.setattr(dispatch, "_BLOCKED", 0.05)
    async with Layer() as layer, Node[bytes](listen=False) as node:
        await within(node.send(Message(b"", layer.address, header=b"block")))
        await until(lambda: bool(caplog.messages), "warning")
    assert re.fullmatch(
        r"the event loop was blocked for at least \d\.\d s while messages arrived, which stalls the whole node: .*",
        caplog.messages[0],
    )
