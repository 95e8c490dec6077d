"""A redpoll node and a libchirp node exchange messages, whoever dials."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from redpoll import Message, Node
from tests.interop.libchirp_node import LibchirpError, Mode, libchirp_node
from tests.interop.nodes import (
    BOTH_HOSTS,
    Inbox,
    each_acknowledge,
    each_host,
    each_mode,
    port_of,
    wait_until,
    where,
    within_bound,
)

if TYPE_CHECKING:
    from tests.interop.raw import Host

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]


class TestMessages:
    @each_host
    @each_acknowledge
    @each_mode
    async def test_redpoll_dials(self, mode: Mode, acknowledge: bool, host: Host) -> None:
        """Messages go both ways over the connection that redpoll dialled, and over no other."""
        inbox = Inbox()
        async with (
            libchirp_node(mode=mode) as chirp,
            Node(inbox, host=BOTH_HOSTS, port=0, acknowledge=acknowledge) as node,
        ):
            message = Message(b"there", where(chirp, host), header=b"HH")
            await within_bound(node.send(message))
            there = await chirp.received()
            assert (there.identity, there.header, there.data) == (message.identity, b"HH", b"there")
            assert (there.address, there.port, there.remote_identity) == (host, port_of(node), node.identity)

            await chirp.send(host, port_of(node), b"back", b"BB")
            back = await inbox.next()
            assert (back.header, back.data, back.remote_identity) == (b"BB", b"back", chirp.identity)
            assert str(back.address) == where(chirp, host)
            assert node.stats().connections == 1

    @each_host
    @each_acknowledge
    @each_mode
    async def test_libchirp_dials(self, mode: Mode, acknowledge: bool, host: Host) -> None:
        """Messages go both ways over the connection that libchirp dialled, and over no other."""
        inbox = Inbox()
        async with (
            libchirp_node(mode=mode) as chirp,
            Node(inbox, host=BOTH_HOSTS, port=0, acknowledge=acknowledge) as node,
        ):
            await chirp.send(host, port_of(node), b"there", b"HH")
            there = await inbox.next()
            assert (there.header, there.data, there.remote_identity) == (b"HH", b"there", chirp.identity)
            assert str(there.address) == where(chirp, host)

            await within_bound(node.send(Message(b"back", where(chirp, host), header=b"BB")))
            back = await chirp.received()
            assert (back.header, back.data) == (b"BB", b"back")
            assert (back.address, back.port, back.remote_identity) == (host, port_of(node), node.identity)
            assert node.stats().connections == 1

    @each_mode
    async def test_acknowledged_is_a_choice_of_each_send(self, mode: Mode) -> None:
        """`acknowledge=` of one send decides about that one, whatever the modes of the nodes."""
        async with libchirp_node(mode=mode, on_message="hold") as chirp, Node(port=0) as node:
            await within_bound(node.send(Message(b"plain", where(chirp)), acknowledge=False))
            held = await chirp.received()
            sent = node.send(Message(b"marked", where(chirp)), acknowledge=True)
            if mode == "sync":
                await chirp.release(held)  # the one slot
            held = await chirp.received()
            assert not sent.done()
            await chirp.release(held)
            await within_bound(sent)

    @each_mode
    async def test_acknowledged_means_released_there(self, mode: Mode) -> None:
        """A send to libchirp is done when the message was released, not before."""
        async with libchirp_node(mode=mode, on_message="hold") as chirp, Node(port=0) as node:
            sent = node.send(Message(b"work", where(chirp)))
            held = await chirp.received()
            assert not sent.done()
            await chirp.release(held)
            await within_bound(sent)

    async def test_libchirp_is_acknowledged_when_the_handler_has_returned(self) -> None:
        """A synchronous libchirp's send is done when the work is, also where redpoll's own mode is unacknowledged."""
        inbox = Inbox(hold=True)
        async with libchirp_node(mode="sync") as chirp, Node(inbox, port=0, acknowledge=False) as node:
            sent = chirp.begin_send("127.0.0.1", port_of(node), b"work")
            await inbox.next()
            assert not sent.done()
            inbox.gate.set()
            await within_bound(sent)

    async def test_pulled_messages_are_acknowledged_on_leaving(self) -> None:
        """A node that is pulled from acknowledges to libchirp when the `async with` block is left."""
        async with libchirp_node(mode="sync") as chirp, Node(port=0) as node:
            sent = chirp.begin_send("127.0.0.1", port_of(node), b"work")
            async with node.take(timeout=5) as message:
                assert message.data == b"work"
                assert not sent.done()
            await within_bound(sent)

    @each_mode
    async def test_a_thousand_one_after_another(self, mode: Mode) -> None:
        """A thousand acknowledged messages, each awaited, all arrive in order and are confirmed."""
        async with libchirp_node(mode=mode) as chirp, Node(port=0) as node:
            for number in range(1000):
                await within_bound(node.send(Message(b"%d" % number, where(chirp))))
            assert [(await chirp.received()).data for _ in range(1000)] == [b"%d" % number for number in range(1000)]
            assert node.stats().sent == 1000

    @each_mode
    async def test_five_hundred_at_once(self, mode: Mode) -> None:
        """Sends that are not awaited go to libchirp one at a time, so that each is confirmed, in order."""
        async with libchirp_node(mode=mode) as chirp, Node(port=0, timeout=30) as node:
            sends = [node.send(Message(b"%d" % number, where(chirp))) for number in range(500)]
            await within_bound(asyncio.gather(*sends))
            assert [(await chirp.received()).data for _ in range(500)] == [b"%d" % number for number in range(500)]

    @each_mode
    async def test_send_many(self, mode: Mode) -> None:
        """`send_many` delivers every item to libchirp, once and in order."""
        async with libchirp_node(mode=mode) as chirp, Node(port=0) as node:
            messages = (Message(b"%d" % number, where(chirp)) for number in range(300))
            assert await within_bound(node.send_many(messages)) == 300
            assert [(await chirp.received()).data for _ in range(300)] == [b"%d" % number for number in range(300)]

    @each_mode
    async def test_a_thousand_from_libchirp(self, mode: Mode) -> None:
        """A thousand messages that libchirp has queued at once are handled once each, in order."""
        inbox = Inbox()
        async with libchirp_node(mode=mode) as chirp, Node(inbox, port=0) as node:
            sends = [chirp.begin_send("127.0.0.1", port_of(node), b"%d" % number) for number in range(1000)]
            await within_bound(asyncio.gather(*sends))
            await wait_until(lambda: len(inbox.ended) == 1000)
            assert inbox.ended == [b"%d" % number for number in range(1000)]

    @each_acknowledge
    @each_mode
    async def test_both_directions_at_once(self, mode: Mode, acknowledge: bool) -> None:
        """Three hundred messages each way at the same time: none is lost, and all are in order where libchirp keeps it."""
        inbox = Inbox()
        expected = [b"%d" % number for number in range(300)]
        async with (
            libchirp_node(mode=mode) as chirp,
            Node(inbox, port=0, acknowledge=acknowledge, slots=1, timeout=30) as node,
        ):
            theirs = [chirp.begin_send("127.0.0.1", port_of(node), data) for data in expected]
            ours = [node.send(Message(data, where(chirp))) for data in expected]
            await within_bound(asyncio.gather(*ours, *theirs))
            assert [(await chirp.received()).data for _ in expected] == expected
            await wait_until(lambda: len(inbox.ended) == 300)
            if mode == "sync":
                assert inbox.ended == expected
            # Both dial; libchirp then goes on over the newer connection, and asynchronous it does not wait for the older
            # one to be read.
            assert sorted(inbox.ended) == sorted(expected)

    @each_mode
    async def test_large_messages(self, mode: Mode) -> None:
        """65,535 bytes of header and 4 MiB of data go both ways unchanged."""
        header, data = b"h" * 65535, bytes(range(256)) * (16 * 1024)
        async with libchirp_node(mode=mode, on_message="reply") as chirp, Node(port=0, timeout=10) as node:
            reply = await within_bound(node.request(Message(data, where(chirp), header=header)))
            assert (reply.header, reply.data) == (header, data)
            there = await chirp.received()
            assert (there.header, there.data) == (header, data)

    @each_mode
    async def test_empty_messages(self, mode: Mode) -> None:
        """A message without header and data goes both ways."""
        inbox = Inbox()
        async with libchirp_node(mode=mode) as chirp, Node(inbox, port=0) as node:
            await within_bound(node.send(Message(b"", where(chirp))))
            assert (await chirp.received()).data == b""
            await chirp.send("127.0.0.1", port_of(node), b"")
            assert (await inbox.next()).data == b""

    @each_mode
    async def test_a_node_that_does_not_listen(self, mode: Mode) -> None:
        """It is acknowledged, and answered, over the link that it dialled."""
        async with libchirp_node(mode=mode, on_message="reply") as chirp, Node(listen=False) as node:
            reply = await within_bound(node.request(Message(b"ping", where(chirp))))
            assert reply.data == b"ping"

    @each_mode
    async def test_three_nodes_that_do_not_listen(self, mode: Mode) -> None:
        """Each of several on one host gets its own acknowledgements and answers."""
        async with (
            libchirp_node(mode=mode, on_message="reply") as chirp,
            Node(listen=False) as first,
            Node(listen=False) as second,
            Node(listen=False) as third,
        ):
            for number in range(20):
                requests = [node.request(Message(b"%d" % number, where(chirp))) for node in (first, second, third)]
                replies = await within_bound(asyncio.gather(*requests))
                assert [reply.data for reply in replies] == [b"%d" % number] * 3
            assert chirp.alive


class TestRequests:
    @each_host
    @each_acknowledge
    @each_mode
    async def test_redpoll_asks(self, mode: Mode, acknowledge: bool, host: Host) -> None:
        """A libchirp handler that sends the message back answers redpoll's request."""
        async with (
            libchirp_node(mode=mode, on_message="reply") as chirp,
            Node(host=BOTH_HOSTS, port=0, acknowledge=acknowledge) as node,
        ):
            for number in range(50):
                message = Message(b"%d" % number, where(chirp, host), header=b"HH")
                reply = await within_bound(node.request(message))
                assert (reply.identity, reply.header, reply.data) == (message.identity, b"HH", message.data)
                assert reply.remote_identity == chirp.identity

    @each_mode
    async def test_many_requests_at_once(self, mode: Mode) -> None:
        """Requests that are open at the same time each get their own answer."""
        async with libchirp_node(mode=mode, on_message="reply") as chirp, Node(port=0, timeout=30) as node:
            requests = [node.request(Message(b"%d" % number, where(chirp))) for number in range(100)]
            replies = await within_bound(asyncio.gather(*requests))
            assert [reply.data for reply in replies] == [b"%d" % number for number in range(100)]

    @each_host
    @each_mode
    async def test_libchirp_asks(self, mode: Mode, host: Host) -> None:
        """What a redpoll handler returns answers libchirp's request, whoever dialled."""

        async def handler(message: Any) -> bytes:
            assert not message.wanted
            await chirp.asked()
            return b"answer to " + bytes(message.data)

        async with libchirp_node(mode=mode) as chirp, Node(handler, host=BOTH_HOSTS, port=0) as node:
            for number in range(50):
                answer = await chirp.request(host, port_of(node), b"%d" % number)
                assert answer.data == b"answer to %d" % number
                assert answer.remote_identity == node.identity

    @each_mode
    async def test_respond_answers_libchirp(self, mode: Mode) -> None:
        """`respond` sends the answer before the handler returns."""

        async def handler(message: Any) -> None:
            await chirp.asked()
            await message.respond(b"pong", header=b"H")

        async with libchirp_node(mode=mode) as chirp, Node(handler, port=0, slots=1) as node:
            answer = await chirp.request("127.0.0.1", port_of(node), b"ping")
            assert (answer.header, answer.data) == (b"H", b"pong")

    @each_mode
    async def test_sending_a_received_message_back_is_a_reply(self, mode: Mode) -> None:
        """As in libchirp: `send` of the received message, or of its `reply()`, goes to its sender as the answer."""

        async def handler(message: Any) -> None:
            await chirp.asked()
            await message.node.send(message.reply(b"changed") if message.data == b"change" else message)

        async with libchirp_node(mode=mode) as chirp, Node(handler, port=0) as node:
            assert (await chirp.request("127.0.0.1", port_of(node), b"change")).data == b"changed"
            assert (await chirp.request("127.0.0.1", port_of(node), b"same")).data == b"same"

    async def test_answers_to_libchirp_can_be_turned_off(self) -> None:
        """With `answer_libchirp=False` what a handler returns stays here; the message is acknowledged all the same."""
        async with (
            libchirp_node(mode="sync", timeout=0.5) as chirp,
            Node(lambda message: b"unwanted", port=0, answer_libchirp=False) as node,
        ):
            await chirp.send("127.0.0.1", port_of(node), b"plain")
            with pytest.raises(LibchirpError) as failed:
                await chirp.request("127.0.0.1", port_of(node), b"question")
            assert failed.value.error == "TimeoutError"
            assert await chirp.nothing_received(0.1)

    async def test_a_handler_may_ask_the_peer_it_serves(self) -> None:
        """With one slot a handler asks the libchirp node whose message it handles, and gets its answer."""

        async def handler(message: Any) -> None:
            if message.data == b"start":
                reply = await message.node.request(Message(b"callback", message.address))
                done.set_result(reply.data)

        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with libchirp_node(mode="async", on_message="reply") as chirp, Node(handler, port=0, slots=1) as node:
            chirp.begin_send("127.0.0.1", port_of(node), b"start")
            assert await within_bound(done) == b"callback"

    async def test_a_handler_may_send_to_the_peer_it_serves(self) -> None:
        """The acknowledgement of a synchronous libchirp, whose own message is being handled, reaches the handler."""

        async def handler(message: Any) -> None:
            await message.node.send(Message(b"callback", message.address))

        async with libchirp_node(mode="sync") as chirp, Node(handler, port=0, slots=1) as node:
            await chirp.send("127.0.0.1", port_of(node), b"start")
            assert (await chirp.received()).data == b"callback"


class TestSlots:
    async def test_sixteen_unreleased_stall_the_seventeenth_and_acknowledgements_flow(self) -> None:
        """With all slots taken by libchirp's messages and more behind them, sends to libchirp are still confirmed."""
        inbox = Inbox(hold=True)
        async with libchirp_node(mode="async") as chirp, Node(inbox, port=0, slots=16) as node:
            sends = [chirp.begin_send("127.0.0.1", port_of(node), b"%d" % number) for number in range(40)]
            await within_bound(asyncio.gather(*sends))
            await wait_until(lambda: len(inbox.started) == 16)
            for number in range(20):
                await within_bound(node.send(Message(b"%d" % number, where(chirp))))
            assert inbox.started == [b"%d" % number for number in range(16)]
            inbox.gate.set()
            await wait_until(lambda: len(inbox.ended) == 40)
            assert inbox.started == [b"%d" % number for number in range(40)]

    async def test_answers_pass_a_full_node(self) -> None:
        """A request is answered while every slot of the peer is taken and its messages wait."""

        async def handler(message: Any) -> None:
            if message.data != b"question":
                started.append(message.data)
                await gate.wait()

        started: list[bytes] = []
        gate = asyncio.Event()
        async with libchirp_node(mode="async", on_message="reply") as chirp, Node(handler, port=0, slots=2) as node:
            for number in range(10):
                await chirp.send("127.0.0.1", port_of(node), b"%d" % number)
            await wait_until(lambda: len(started) == 2)
            assert (await within_bound(node.request(Message(b"question", where(chirp))))).data == b"question"
            assert len(started) == 2
            gate.set()
            await wait_until(lambda: len(started) == 10)

    async def test_libchirp_with_all_slots_taken_holds_the_rest_back(self) -> None:
        """Unacknowledged messages behind sixteen that libchirp has not released wait, and arrive when it does."""
        async with libchirp_node(mode="async", on_message="hold") as chirp, Node(port=0, acknowledge=False) as node:
            for number in range(20):
                await within_bound(node.send(Message(b"%d" % number, where(chirp))))
            held = [await chirp.received() for _ in range(16)]
            assert await chirp.nothing_received(0.2)
            for message in held:
                await chirp.release(message)
            assert [(await chirp.received()).data for _ in range(4)] == [b"16", b"17", b"18", b"19"]

    async def test_a_synchronous_libchirp_is_throttled_by_the_handler(self) -> None:
        """One slot: the next message of libchirp starts when the handler of the last one has returned."""
        inbox = Inbox(hold=True)
        async with libchirp_node(mode="sync") as chirp, Node(inbox, port=0) as node:
            sends = [chirp.begin_send("127.0.0.1", port_of(node), b"%d" % number) for number in range(3)]
            assert (await inbox.next()).data == b"0"
            assert await inbox.nothing(0.1)
            assert not any(sent.done() for sent in sends)
            inbox.gate.set()
            await within_bound(asyncio.gather(*sends))
            assert inbox.ended == [b"0", b"1", b"2"]
