"""A redpoll node and a libchirp node when something goes wrong: peers die, freeze, dial at once; handlers fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Message, Node, NotConfirmed, NotSent
from tests.interop.libchirp_node import LibchirpError, Mode, libchirp_node
from tests.interop.nodes import (
    OPENING,
    Inbox,
    dialled_libchirp,
    dialling_libchirp,
    each_mode,
    port_of,
    text_address,
    wait_until,
    where,
    within_bound,
)
from tests.interop.raw import ACK, Frame, RawLink, first_frame, handshake, raw_listener

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]


class TestConnections:
    @each_mode
    async def test_simultaneous_dialling(self, mode: Mode) -> None:
        """Both dial at once, again and again: every message gets through, both nodes stay up, traffic goes on."""
        inbox = Inbox()
        async with libchirp_node(mode=mode) as chirp:
            for _ in range(5):
                async with Node(inbox, port=0) as node:
                    theirs = chirp.begin_send("127.0.0.1", port_of(node), b"theirs")
                    ours = node.send(Message(b"ours", where(chirp)))
                    await within_bound(asyncio.gather(ours, theirs))
                    for _ in range(20):
                        await within_bound(node.send(Message(b"more", where(chirp))))
                        await chirp.send("127.0.0.1", port_of(node), b"more")
                assert [(await chirp.received()).data for _ in range(21)] == [b"ours", *[b"more"] * 20]
                await wait_until(lambda: len(inbox.ended) == 21)
                inbox.ended.clear()
            assert chirp.alive

    async def test_two_connections_of_one_libchirp_peer_both_work(self) -> None:
        """While redpoll's dialling is not answered the peer dials too: both links are kept and read."""
        inbox = Inbox()
        async with Node(inbox, port=0) as node, raw_listener() as listener:
            sent = node.send(Message(b"dials", text_address(listener.host, listener.port)))
            ours = await listener.accept()
            async with dialling_libchirp(node, listener) as theirs:
                ours.write(handshake(listener.port, b"I" * 16))
                await ours.read(OPENING)
                message, found = await first_frame(ours, theirs)
                assert message.data == b"dials"
                found.acknowledge(message)
                await within_bound(sent)
                for link in (ours, theirs, ours, theirs):
                    incoming = link.message(b"x")
                    link.send(incoming)
                    answer, _ = await first_frame(ours, theirs)
                    assert (answer.identity, answer.kind) == (incoming.identity, ACK)
                assert node.stats().connections == 2
            ours.close()

    async def test_an_acknowledgement_counts_on_either_link(self) -> None:
        """Libchirp acknowledges on its newest connection: redpoll takes it wherever it comes."""
        async with Node(port=0) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            sends = [node.send(Message(b"%d" % number, address)) for number in range(5)]
            async with dialled_libchirp(listener) as ours:
                message = await ours.read_frame()
                async with dialling_libchirp(node, listener) as theirs:
                    for sent in sends:
                        theirs.acknowledge(message)
                        await within_bound(sent)
                        if sent is not sends[-1]:
                            message, _ = await first_frame(ours, theirs)

    async def test_an_acknowledgement_may_come_glued_behind_a_handshake(self) -> None:
        """Libchirp acknowledges on the connection it has just dialled, in one read with its handshake there."""
        async with Node(port=0) as node, raw_listener() as listener:
            sent = node.send(Message(b"x", text_address(listener.host, listener.port)))
            async with dialled_libchirp(listener) as ours:
                message = await ours.read_frame()
                theirs = await RawLink.dial("127.0.0.1", port_of(node))
                theirs.write(handshake(listener.port, b"I" * 16) + Frame(message.identity, 1, ACK).encode())
                await within_bound(sent)
                theirs.close()

    async def test_an_answer_may_come_glued_behind_a_handshake(self) -> None:
        """So may the answer to a request that left on the older link."""
        async with Node(port=0) as node, raw_listener() as listener:
            asking = node.request(Message(b"x", text_address(listener.host, listener.port)))
            requested = asyncio.ensure_future(asking)
            async with dialled_libchirp(listener) as ours:
                message = await ours.read_frame()
                theirs = await RawLink.dial("127.0.0.1", port_of(node))
                answer = theirs.message(b"answer", identity=message.identity, kind=0)
                opening = handshake(listener.port, b"I" * 16) + Frame(message.identity, 1, ACK).encode()
                theirs.write(opening + answer.encode())
                assert (await within_bound(requested)).data == b"answer"
                theirs.close()

    async def test_one_connection_however_much_is_sent(self) -> None:
        """Many sends before the first link is up dial once."""
        async with Node(port=0) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            sends = [node.send(Message(b"%d" % number, address), timeout=1) for number in range(50)]
            link = await listener.accept()
            assert not await listener.accepts_within(0.3)
            link.close()
            listener.close()
            await asyncio.gather(*sends, return_exceptions=True)

    async def test_libchirp_closes_the_idle_link_and_the_next_send_dials(self) -> None:
        """After twice its reuse time libchirp closes; that costs redpoll no message and is no failure of a send."""
        async with (
            libchirp_node(mode="sync", timeout=0.1, reuse_time=0.5) as chirp,
            Node(port=0, keepalive=None) as node,
        ):
            for number in range(3):
                gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                node.events.peer_lost = lambda peer, error, gone=gone: gone.set_result(None)
                await within_bound(node.send(Message(b"%d" % number, where(chirp))))
                await within_bound(gone)
            assert [(await chirp.received()).data for _ in range(3)] == [b"0", b"1", b"2"]

    async def test_redpoll_closes_an_idle_link_and_libchirp_dials_again(self) -> None:
        """After redpoll's own reuse time the link goes; libchirp's next send makes a new one."""
        inbox = Inbox()
        async with libchirp_node(mode="sync") as chirp, Node(inbox, port=0, timeout=0.1, reuse_time=0.5) as node:
            await chirp.send("127.0.0.1", port_of(node), b"first")
            await wait_until(lambda: node.stats().connections == 0)
            await chirp.send("127.0.0.1", port_of(node), b"second")
            assert [(await inbox.next()).data for _ in range(2)] == [b"first", b"second"]


class TestLoss:
    @each_mode
    async def test_a_killed_peer(self, mode: Mode) -> None:
        """What was in flight fails as not confirmed; what was queued flows when the peer is back."""
        async with libchirp_node(mode=mode, on_message="hold") as chirp, Node(port=0, timeout=30) as node:
            sends = [node.send(Message(b"%d" % number, where(chirp))) for number in range(4)]
            await chirp.received()
            await chirp.kill()
            with pytest.raises(NotConfirmed) as failed:
                await within_bound(sends[0])
            assert failed.value.sent
            assert not any(sent.done() for sent in sends[1:])
            await chirp.start()
            for number in (1, 2, 3):
                held = await chirp.received()
                assert held.data == b"%d" % number
                await chirp.release(held)
                await within_bound(sends[number])

    async def test_a_retried_send_reaches_the_restarted_peer(self) -> None:
        """With `retry` the one in flight is sent again to the restarted libchirp, in its old place."""
        async with libchirp_node(mode="sync", on_message="hold") as chirp, Node(port=0, timeout=30) as node:
            sends = [node.send(Message(b"%d" % number, where(chirp)), retry=1) for number in range(2)]
            await chirp.received()
            await chirp.kill()
            await chirp.start()
            for number in (0, 1):
                held = await chirp.received()
                assert held.data == b"%d" % number
                await chirp.release(held)
                await within_bound(sends[number])

    async def test_a_peer_that_never_comes_back(self) -> None:
        """Queued messages expire as not sent when their own timeout ends."""
        async with libchirp_node(mode="sync") as chirp, Node(port=0) as node:
            await within_bound(node.send(Message(b"works", where(chirp))))
            await chirp.kill()
            sends = [node.send(Message(b"late", where(chirp)), timeout=0.3) for _ in range(3)]
            outcomes = await within_bound(asyncio.gather(*sends, return_exceptions=True))
            # The first may have left before the loss was seen; the rest cannot have.
            assert isinstance(outcomes[0], (NotSent, NotConfirmed))
            for outcome in outcomes[1:]:
                assert isinstance(outcome, NotSent)
                assert isinstance(outcome, TimeoutError)

    async def test_redpoll_comes_back(self) -> None:
        """A redpoll node that stops and returns on its port gets what libchirp had still queued."""
        inbox = Inbox(hold=True)
        async with libchirp_node(mode="sync") as chirp:
            async with Node(inbox, port=0) as node:
                port = port_of(node)
                sends = [chirp.begin_send("127.0.0.1", port, b"%d" % number) for number in range(3)]
                await inbox.next()
                await node.stop(drain=0)
            with pytest.raises(LibchirpError) as failed:
                await within_bound(sends[0])
            assert failed.value.code == 3
            inbox.gate.set()
            async with Node(inbox, port=port):
                await within_bound(sends[2])
            # Libchirp fails the head of its queue with each attempt to dial that is refused.
            assert inbox.ended[-1] == b"2"

    @each_mode
    async def test_a_frozen_peer(self, mode: Mode) -> None:
        """A send to a frozen libchirp times out as not confirmed and closes the link; thawed, the next one works."""
        async with libchirp_node(mode=mode) as chirp, Node(port=0) as node:
            await within_bound(node.send(Message(b"first", where(chirp))))
            chirp.freeze()
            with pytest.raises(NotConfirmed) as failed:
                await within_bound(node.send(Message(b"frozen", where(chirp)), timeout=0.3))
            assert isinstance(failed.value, TimeoutError)
            assert failed.value.sent
            await wait_until(lambda: node.stats().connections == 0)
            chirp.thaw()
            await within_bound(node.send(Message(b"thawed", where(chirp))))

    async def test_a_message_that_is_too_long_for_libchirp(self) -> None:
        """Libchirp closes on a message above its limit; redpoll's send fails as not confirmed, the next one works."""
        async with libchirp_node(mode="sync", max_message=1000) as chirp, Node(port=0) as node:
            with pytest.raises(NotConfirmed):
                await within_bound(node.send(Message(b"x" * 1001, where(chirp))))
            await within_bound(node.send(Message(b"x" * 1000, where(chirp))))
            assert len((await chirp.received()).data) == 1000

    async def test_a_message_that_is_too_long_for_redpoll(self) -> None:
        """Redpoll closes on a message above its limit, before its body; libchirp's send fails, the next one works."""
        inbox = Inbox()
        async with libchirp_node(mode="sync") as chirp, Node(inbox, port=0, max_message_size=1000) as node:
            with pytest.raises(LibchirpError) as failed:
                await chirp.send("127.0.0.1", port_of(node), b"x" * 1001)
            assert failed.value.code == 3
            await chirp.send("127.0.0.1", port_of(node), b"x" * 1000)
            assert len((await inbox.next()).data) == 1000


class TestFailingHandlers:
    async def test_a_handler_that_raises_is_never_acknowledged(self) -> None:
        """A synchronous libchirp's send times out; the slot is free again and the next message is handled."""

        async def handler(message: Any) -> None:
            handled.append(message.data)
            if message.data == b"bad":
                raise RuntimeError("the work failed")

        handled: list[bytes] = []
        async with libchirp_node(mode="sync", timeout=0.5) as chirp, Node(handler, port=0) as node:
            with pytest.raises(LibchirpError) as failed:
                await chirp.send("127.0.0.1", port_of(node), b"bad")
            assert failed.value.error == "TimeoutError"
            await chirp.send("127.0.0.1", port_of(node), b"good")
            assert handled == [b"bad", b"good"]
            assert node.stats().refused == 1

    async def test_a_refused_message_is_never_acknowledged(self) -> None:
        """`refuse()` has no word in libchirp's protocol: its sender times out."""

        def handler(message: Any) -> None:
            if message.data == b"bad":
                message.refuse("not today")

        async with libchirp_node(mode="sync", timeout=0.5) as chirp, Node(handler, port=0) as node:
            with pytest.raises(LibchirpError) as failed:
                await chirp.send("127.0.0.1", port_of(node), b"bad")
            assert failed.value.error == "TimeoutError"
            await chirp.send("127.0.0.1", port_of(node), b"good")

    async def test_failures_cost_no_slot(self) -> None:
        """More failing messages than there are slots are all handled: none of libchirp's dead connections."""

        def handler(message: Any) -> None:
            handled.append(message.data)
            raise RuntimeError("the work failed")

        handled: list[bytes] = []
        async with libchirp_node(mode="async") as chirp, Node(handler, port=0, slots=4) as node:
            for number in range(50):
                await chirp.send("127.0.0.1", port_of(node), b"%d" % number)
            await wait_until(lambda: len(handled) == 50)
            assert handled == [b"%d" % number for number in range(50)]

    async def test_a_libchirp_handler_that_raises(self) -> None:
        """Libchirp does not acknowledge work that failed: redpoll's send times out as not confirmed."""
        async with libchirp_node(mode="sync", on_message="raise") as chirp, Node(port=0) as node:
            with pytest.raises(NotConfirmed) as failed:
                await within_bound(node.send(Message(b"bad", where(chirp)), timeout=0.5))
            assert isinstance(failed.value, TimeoutError)


class TestStopping:
    async def test_work_in_progress_is_acknowledged_before_the_link_goes(self) -> None:
        """`stop(drain=)` lets the handler end, and libchirp gets its acknowledgement."""
        inbox = Inbox(hold=True)
        async with libchirp_node(mode="sync") as chirp, Node(inbox, port=0) as node:
            sent = chirp.begin_send("127.0.0.1", port_of(node), b"work")
            await inbox.next()
            stopping = asyncio.ensure_future(node.stop(drain=5))
            await asyncio.sleep(0)
            inbox.gate.set()
            await within_bound(sent)
            await within_bound(stopping)

    @each_mode
    async def test_libchirp_stops(self, mode: Mode) -> None:
        """A libchirp node that stops properly is a lost peer, not an error of a message that was done."""
        async with libchirp_node(mode=mode) as chirp, Node(port=0) as node:
            await within_bound(node.send(Message(b"done", where(chirp))))
            await chirp.stop()
            await wait_until(lambda: node.stats().connections == 0)
