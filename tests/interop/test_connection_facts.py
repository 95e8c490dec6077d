"""What libchirp does with connections, slots and replies, seen from a bare socket: facts, as in test_wire_facts.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.interop.libchirp_node import Api, LibchirpError, Mode, libchirp_node, raw_link
from tests.interop.raw import (
    ACK,
    ANNOUNCEMENT,
    BOUND,
    NOOP,
    REQ_ACK,
    Frame,
    Host,
    RawLink,
    accepted,
    first_frame,
    handshake,
    raw_listener,
)

# Which loop the tests run on says nothing about libchirp: one is enough.
pytestmark = [pytest.mark.interop, pytest.mark.asyncio(loop_factories=["asyncio"])]

IDENTITY = bytes(range(16))

each_mode = pytest.mark.parametrize("mode", ["sync", "async"])
each_api = pytest.mark.parametrize("api", ["asyncio", "queue"])
each_host = pytest.mark.parametrize("host", ["127.0.0.1", "::1"])


class TestSlots:
    async def test_sixteen_unreleased_stall_the_seventeenth(self) -> None:
        """An asynchronous node with its sixteen slots taken reads on only when one is released."""
        async with (
            libchirp_node(mode="async", on_message="hold") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            for number in range(20):
                link.send(link.message(b"%d" % number, kind=0))
            held = [await node.received() for _ in range(16)]
            assert [message.data for message in held] == [b"%d" % number for number in range(16)]
            assert await node.nothing_received(0.3)
            await node.release(held[5])
            assert (await node.received()).data == b"16"
            assert await node.nothing_received(0.1)

    async def test_a_stalled_reader_sees_no_acknowledgement(self) -> None:
        """Behind messages that wait for a slot an acknowledgement waits too: libchirp's own dead lock."""
        async with (
            libchirp_node(mode="sync", on_message="hold") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            link.send(link.message(b"takes the slot", kind=0))
            held = await node.received()
            sent = node.begin_send(listener.host, listener.port, b"waits")
            message = await link.read_frame()
            link.send(link.message(b"stalls", kind=0))
            link.acknowledge(message)
            assert await link.silent(0.3)
            assert not sent.done()
            await node.release(held)
            await asyncio.wait_for(sent, BOUND)

    async def test_acknowledgements_need_no_slot(self) -> None:
        """With all slots taken, but nothing behind them, an acknowledgement is still read."""
        async with (
            libchirp_node(mode="sync", on_message="hold") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            link.send(link.message(b"takes the slot"))
            await node.received()
            sent = node.begin_send(listener.host, listener.port, b"x")
            link.acknowledge(await link.read_frame())
            await asyncio.wait_for(sent, BOUND)


class TestConnections:
    @each_host
    @each_mode
    async def test_the_incoming_connection_is_used_for_sending(self, mode: Mode, host: Host) -> None:
        """To a node that has dialled it libchirp sends over that connection, and does not dial."""
        async with (
            libchirp_node(mode=mode) as node,
            raw_listener(host) as listener,
            raw_link(node, listener) as link,
        ):
            sent = node.begin_send(host, listener.port, b"back")
            message = await link.read_frame()
            assert message.data == b"back"
            link.acknowledge(message)
            await asyncio.wait_for(sent, BOUND)
            assert not await listener.accepts_within(0.2)

    @each_mode
    async def test_simultaneous_dialling_leaves_two_connections_that_work(self, mode: Mode) -> None:
        """Both connections are read; libchirp writes on the one whose handshake came last."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            node.begin_send("127.0.0.1", listener.port, b"dials")
            theirs = await listener.accept()
            ours = await RawLink.dial("127.0.0.1", node.port)
            ours.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode())
            await ours.read_handshake()
            await ours.consumed()
            theirs.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode())
            await theirs.read_handshake()
            first, found = await first_frame(ours, theirs)
            assert first.data == b"dials"
            if mode == "sync":
                found.acknowledge(first)
            for link in (ours, theirs, ours, theirs):
                message = link.message(b"x")
                link.send(message)
                answer, on = await first_frame(ours, theirs)
                assert (answer.identity, answer.kind) == (message.identity, ACK)
                assert on is theirs
            assert node.alive
            ours.close()
            theirs.close()

    @each_mode
    async def test_an_acknowledgement_goes_to_the_newest_connection_of_the_address(self, mode: Mode) -> None:
        """Two nodes that announce one port from one host are one remote: the older is answered on the newer's link."""
        async with (
            libchirp_node(mode=mode) as node,
            raw_listener() as listener,
            raw_link(node, listener, b"A" * 16) as older,
            raw_link(node, listener, b"B" * 16) as newer,
        ):
            message = older.message(b"whose?")
            older.send(message)
            assert (await node.received()).remote_identity == b"A" * 16
            answer, on = await first_frame(older, newer)
            assert (answer.identity, answer.kind) == (message.identity, ACK)
            assert on is newer

    @each_mode
    async def test_connections_one_after_another_work(self, mode: Mode) -> None:
        """A connection may be replaced at any time and any number of times; the old one need not be gone first."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            for _ in range(50):
                async with raw_link(node, listener) as link:
                    message = link.message()
                    link.send(message)
                    assert (await link.read_frame()).identity == message.identity

    @each_mode
    async def test_ports_keep_connections_apart(self, mode: Mode) -> None:
        """Several connections from one host that announce different ports are different remotes."""
        async with libchirp_node(mode=mode) as node:
            links = [await RawLink.dial("127.0.0.1", node.port) for _ in range(4)]
            for port, link in enumerate(links, 1):
                link.write(handshake(port, IDENTITY) + ANNOUNCEMENT.encode())
                await link.read_handshake()
            for port, link in enumerate(links, 1):
                message = link.message()
                link.send(message)
                assert (await node.received()).port == port
                assert (await link.read_frame()).identity == message.identity
            for link in links:
                link.close()

    async def test_losing_the_connection_fails_what_is_in_flight_and_no_more(self) -> None:
        """The message in flight fails with PROTOCOL_ERROR; those queued behind it flow over the next connection."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener:
            sends = [node.begin_send("127.0.0.1", listener.port, b"%d" % number) for number in range(3)]
            async with accepted(listener) as link:
                assert (await link.read_frame()).data == b"0"
            with pytest.raises(LibchirpError) as failed:
                await asyncio.wait_for(sends[0], BOUND)
            assert (failed.value.error, failed.value.code) == ("RuntimeError", 3)
            async with accepted(listener) as link:
                for number in (1, 2):
                    message = await link.read_frame()
                    assert message.data == b"%d" % number
                    link.acknowledge(message)
                    await asyncio.wait_for(sends[number], BOUND)

    async def test_a_lost_connection_does_not_block_the_next_incoming_one(self) -> None:
        """While libchirp waits to dial again, a connection dialled to it is used at once."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener:
            async with raw_link(node, listener) as link:
                link.send(link.message())
                await link.read_frame()
            async with raw_link(node, listener) as link:
                sent = node.begin_send("127.0.0.1", listener.port, b"at once")
                link.acknowledge(await link.read_frame())
                await asyncio.wait_for(sent, BOUND)
                assert not await listener.accepts_within(0.7)

    async def test_a_missing_acknowledgement_closes_the_connection(self) -> None:
        """After its timeout a synchronous sender fails with TIMEOUT and closes."""
        async with (
            libchirp_node(mode="sync", timeout=0.3) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            sent = node.begin_send("127.0.0.1", listener.port, b"ignored")
            assert (await link.read_frame()).data == b"ignored"
            assert await link.read_all() == b""
            with pytest.raises(LibchirpError) as failed:
                await asyncio.wait_for(sent, BOUND)
            assert failed.value.error == "TimeoutError"

    async def test_a_handler_that_raises_is_not_acknowledged(self) -> None:
        """Libchirp's own rule for work that failed: silence, and a slot lost."""
        async with (
            libchirp_node(mode="async", on_message="raise") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            link.send(link.message(b"fails"))
            await node.received()
            assert await link.silent(0.3)

    @each_mode
    async def test_after_three_quarters_of_the_reuse_time_a_noop_comes_first(self, mode: Mode) -> None:
        """The probe before the first frame on an idle connection has a blank identity and takes a serial."""
        async with (
            libchirp_node(mode=mode, timeout=0.5, reuse_time=1.5) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            link.send(link.message())
            first = await link.read_frame()
            assert await link.silent(1.3)
            node.begin_send("127.0.0.1", listener.port, b"after a rest")
            probe, message = await link.read_frame(), await link.read_frame()
            assert probe == Frame(bytes(16), first.serial + 1, NOOP)
            assert (message.serial, message.data) == (first.serial + 2, b"after a rest")

    async def test_after_twice_the_reuse_time_the_connection_is_closed(self) -> None:
        """An idle connection is closed without a word; the next send dials."""
        async with libchirp_node(mode="async", timeout=0.1, reuse_time=0.5) as node, raw_listener() as listener:
            async with raw_link(node, listener) as link:
                link.send(link.message())
                await link.read_frame()
                assert await link.read_all() == b""
            sent = node.begin_send("127.0.0.1", listener.port, b"again")
            async with accepted(listener) as link:
                assert (await link.read_frame()).data == b"again"
                await asyncio.wait_for(sent, BOUND)


class TestReplies:
    @each_mode
    async def test_a_reply_keeps_the_identity(self, mode: Mode) -> None:
        """A message sent back by libchirp has the identity of the one received, and the mode's type."""
        async with (
            libchirp_node(mode=mode, on_message="hold") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            message = link.message(b"question", header=b"H")
            link.send(message)
            received = await node.received()
            replied = asyncio.ensure_future(node.reply(received, b"answer"))
            reply = await link.read_frame()
            assert (reply.identity, reply.header, reply.data) == (message.identity, b"H", b"answer")
            assert reply.kind == (REQ_ACK if mode == "sync" else 0)
            if mode == "sync":
                link.acknowledge(reply)
            await replied
            await node.release(received)
            assert (await link.read_frame()).kind == ACK

    @each_api
    @each_mode
    async def test_a_request_is_answered_by_a_message_of_its_identity(self, mode: Mode, api: Api) -> None:
        """A libchirp request ends with the next message of the same identity, before or after the acknowledgement."""
        async with (
            libchirp_node(mode=mode, api=api) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            for acknowledge_first in (True, False):
                requested = asyncio.ensure_future(node.request("127.0.0.1", listener.port, b"question"))
                question = await link.read_frame()
                await node.asked()
                if mode == "sync" and acknowledge_first:
                    link.acknowledge(question)
                link.send(link.message(b"answer", identity=question.identity, kind=0))
                if mode == "sync" and not acknowledge_first:
                    link.acknowledge(question)
                assert (await requested).data == b"answer"
