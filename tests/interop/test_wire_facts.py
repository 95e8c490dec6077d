"""What libchirp does on the wire, seen from a bare socket: the facts on which src/redpoll/wire relies.

Nothing of redpoll takes part. A failure here means that a design assumption is wrong, not that the node is.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.interop.libchirp_node import Api, Mode, libchirp_node, raw_link
from tests.interop.raw import (
    ACK,
    ANNOUNCEMENT,
    BOUND,
    NOOP,
    REQ_ACK,
    Frame,
    Host,
    RawLink,
    handshake,
    raw_listener,
)

# Which loop the tests run on says nothing about libchirp: one is enough.
pytestmark = [pytest.mark.interop, pytest.mark.asyncio(loop_factories=["asyncio"])]

IDENTITY = bytes(range(16))

each_mode = pytest.mark.parametrize("mode", ["sync", "async"])
each_api = pytest.mark.parametrize("api", ["asyncio", "queue"])
each_host = pytest.mark.parametrize("host", ["127.0.0.1", "::1"])


class TestOpening:
    @each_host
    @each_api
    @each_mode
    async def test_accepting_takes_handshake_and_announcement_in_one_write(
        self, mode: Mode, api: Api, host: Host
    ) -> None:
        """A libchirp that is dialled takes 18 and 27 bytes written at once, and the link works."""
        async with libchirp_node(mode=mode, api=api) as node, raw_listener(host) as listener:
            link = await RawLink.dial(host, node.port)
            link.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode())
            assert await link.read_handshake() == (node.port, node.identity)
            message = link.message(b"hello", header=b"HH")
            link.send(message)
            received = await node.received()
            assert (received.identity, received.serial) == (message.identity, message.serial)
            assert (received.header, received.data) == (b"HH", b"hello")
            assert (received.address, received.port, received.remote_identity) == (host, listener.port, IDENTITY)
            answer = await link.read_frame()
            assert (answer.identity, answer.kind) == (message.identity, ACK)
            link.close()

    @each_host
    @each_api
    @each_mode
    async def test_dialling_takes_handshake_and_announcement_in_one_write(
        self, mode: Mode, api: Api, host: Host
    ) -> None:
        """A libchirp that dials takes 18 and 27 bytes written at once on accepting, and its message goes through."""
        async with libchirp_node(mode=mode, api=api) as node, raw_listener(host) as listener:
            sent = node.begin_send(host, listener.port, b"hello", b"HH")
            link = await listener.accept()
            link.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode())
            assert await link.read_handshake() == (node.port, node.identity)
            message = await link.read_frame()
            assert (message.header, message.data) == (b"HH", b"hello")
            assert message.kind == (REQ_ACK if mode == "sync" else 0)
            if mode == "sync":
                assert not sent.done()
                link.acknowledge(message)
            await asyncio.wait_for(sent, BOUND)
            link.close()

    @each_mode
    async def test_messages_glued_behind_the_opening_are_read(self, mode: Mode) -> None:
        """Handshake, announcement and a message may come in one write."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            link = await RawLink.dial("127.0.0.1", node.port)
            message = link.message(b"glued")
            link.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode() + message.encode())
            assert (await node.received()).data == b"glued"
            await link.read_handshake()
            assert (await link.read_frame()).identity == message.identity
            link.close()

    @each_mode
    async def test_libchirp_speaks_first_and_sends_frames_only_after_our_handshake(self, mode: Mode) -> None:
        """Its 18 bytes come unprompted; its message waits for ours."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            node.begin_send("127.0.0.1", listener.port, b"waits")
            link = await listener.accept()
            assert await link.read_handshake() == (node.port, node.identity)
            assert await link.silent(0.3)
            link.write(handshake(listener.port, IDENTITY) + ANNOUNCEMENT.encode())
            assert (await link.read_frame()).data == b"waits"
            link.close()

            incoming = await RawLink.dial("127.0.0.1", node.port)
            assert await incoming.read_handshake() == (node.port, node.identity)
            incoming.close()

    @each_mode
    async def test_a_handshake_in_two_reads_closes_the_connection(self, mode: Mode) -> None:
        """Of all elements the handshake alone must come whole: 18 bytes cut anywhere are rejected."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            for cut in range(1, 18):
                link = await RawLink.dial("127.0.0.1", node.port)
                await link.read_handshake()
                link.write(handshake(listener.port, IDENTITY)[:cut])
                assert await link.read_all() == b"", f"cut at {cut}"
                link.close()
            assert node.alive

    @each_mode
    async def test_another_port_than_the_dialled_one_loses_the_message(self, mode: Mode) -> None:
        """Who is dialled must announce the port that was dialled, or what was queued for it does not come."""
        async with libchirp_node(mode=mode, timeout=0.5) as node, raw_listener() as listener, raw_listener() as other:
            sent = node.begin_send("127.0.0.1", listener.port, b"stuck")
            link = await listener.accept()
            link.write(handshake(other.port, IDENTITY))
            await link.read_handshake()
            assert await link.silent(1.0)
            assert not sent.done()
            link.close()

    @each_mode
    async def test_port_zero_works_while_the_link_is_up(self, mode: Mode) -> None:
        """A node that does not listen announces port 0: it is acknowledged and answered over its own link."""
        async with libchirp_node(mode=mode, on_message="reply") as node:
            link = await RawLink.dial("127.0.0.1", node.port)
            link.write(handshake(0, IDENTITY) + ANNOUNCEMENT.encode())
            await link.read_handshake()
            message = link.message(b"from nowhere")
            link.send(message)
            received = await node.received()
            assert (received.port, received.remote_identity) == (0, IDENTITY)
            reply = await link.read_frame()
            assert (reply.identity, reply.data) == (message.identity, b"from nowhere")
            if mode == "sync":
                link.acknowledge(reply)
            assert (await link.read_frame()).kind == ACK
            link.close()


class TestAnnouncement:
    @each_mode
    async def test_noops_are_swallowed(self, mode: Mode) -> None:
        """NOOPs of any identity, serial and upper bits, anywhere between frames, change nothing and get no answer."""
        kinds = [NOOP, NOOP | ACK, *(NOOP | bit << 3 for bit in range(32))]
        noops = [Frame(ANNOUNCEMENT.identity, 0xFFFFFFFF - kind, kind) for kind in kinds]
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            for noop in noops:
                link.send(noop)
            first, second = link.message(b"first"), link.message(b"second")
            link.write(b"".join(noop.encode() for noop in noops) + first.encode())
            assert (await link.read_frame()).identity == first.identity
            link.write(second.encode() + ANNOUNCEMENT.encode())
            assert (await link.read_frame()).identity == second.identity
            assert [(await node.received()).data for _ in range(2)] == [b"first", b"second"]
            assert await link.silent(0.2)

    async def test_an_announcement_keeps_an_idle_connection(self) -> None:
        """A NOOP counts as use: the connection outlives twice libchirp's reuse time."""
        async with (
            libchirp_node(mode="async", timeout=0.1, reuse_time=0.5) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            for _ in range(8):
                assert await link.silent(0.25)
                link.send(ANNOUNCEMENT)
            message = link.message()
            link.send(message)
            assert (await link.read_frame()).identity == message.identity


class TestAcknowledgement:
    @each_api
    @each_mode
    async def test_the_bit_alone_decides(self, mode: Mode, api: Api) -> None:
        """REQ_ACK is acknowledged by either mode, type 0 by neither."""
        async with (
            libchirp_node(mode=mode, api=api) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            plain, marked = link.message(b"plain", kind=0), link.message(b"marked")
            link.send(plain)
            assert (await node.received()).data == b"plain"
            link.send(marked)
            assert (await link.read_frame()).identity == marked.identity
            assert await link.silent(0.2)

    async def test_it_comes_with_the_release(self) -> None:
        """Not the receipt but the release is acknowledged."""
        async with (
            libchirp_node(mode="async", on_message="hold") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            message = link.message(b"held")
            link.send(message)
            received = await node.received()
            assert await link.silent(0.2)
            await node.release(received)
            answer = await link.read_frame()
            assert (answer.identity, answer.kind, answer.header, answer.data) == (message.identity, ACK, b"", b"")

    async def test_serials_rise_by_one_with_each_frame(self) -> None:
        """Messages and acknowledgements share one counter per remote."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener, raw_link(node, listener) as link:
            serials = []
            for number in range(5):
                link.send(link.message())
                serials.append((await link.read_frame()).serial)
                sent = node.begin_send(listener.host, listener.port, b"%d" % number)
                message = await link.read_frame()
                serials.append(message.serial)
                link.acknowledge(message)
                await asyncio.wait_for(sent, BOUND)
            assert [serial - serials[0] for serial in serials] == list(range(10))

    @each_api
    @each_mode
    async def test_a_thousand_one_at_a_time_are_all_acknowledged(self, mode: Mode, api: Api) -> None:
        """With one unacknowledged message at a time nothing is lost, in either mode."""
        async with (
            libchirp_node(mode=mode, api=api) as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            for number in range(1000):
                message = link.message(b"%d" % number)
                link.send(message)
                answer = await link.read_frame()
                assert (answer.identity, answer.kind) == (message.identity, ACK)

    async def test_several_at_once_lose_acknowledgements(self) -> None:
        """Marked messages sent without waiting are all handled, but not all acknowledged: so one at a time."""
        async with libchirp_node(mode="async") as node, raw_listener() as listener, raw_link(node, listener) as link:
            acknowledged = 0
            for _ in range(5):
                burst = [link.message() for _ in range(16)]
                link.write(b"".join(message.encode() for message in burst))
                identities = {(await node.received()).identity for _ in burst}
                assert identities == {message.identity for message in burst}
                while True:
                    try:
                        acknowledged += (await link.read_frame(0.3)).kind == ACK
                    except TimeoutError:
                        break
            assert 0 < acknowledged < 80

    @each_mode
    async def test_unmarked_messages_around_a_marked_one_do_no_harm(self, mode: Mode) -> None:
        """Only marked messages must go one at a time: twenty others with it, it is still acknowledged."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            for place in range(21):
                burst = [link.message(kind=0) for _ in range(20)]
                marked = link.message(b"marked")
                burst.insert(place, marked)
                link.write(b"".join(message.encode() for message in burst))
                answer = await link.read_frame()
                assert (answer.identity, answer.kind) == (marked.identity, ACK)

    @each_mode
    async def test_both_directions_at_once_lose_nothing(self, mode: Mode) -> None:
        """Messages from libchirp on the same link do not cost an acknowledgement to it."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            total = 300
            sends = [node.begin_send(listener.host, listener.port, b"%d" % number) for number in range(total)]
            open_message = link.message()
            link.send(open_message)
            acknowledged = arrived = 0
            while acknowledged < total or arrived < total:
                frame = await link.read_frame()
                if frame.kind == ACK:
                    assert frame.identity == open_message.identity
                    acknowledged += 1
                    if acknowledged < total:
                        open_message = link.message()
                        link.send(open_message)
                else:
                    assert frame.data == b"%d" % arrived
                    arrived += 1
                    if frame.kind == REQ_ACK:
                        link.acknowledge(frame)
            await asyncio.wait_for(asyncio.gather(*sends), BOUND)

    async def test_strangers_are_ignored(self) -> None:
        """Acknowledgements for nothing that waits are ignored; the right one counts, whatever its serial."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener, raw_link(node, listener) as link:
            link.send(Frame(b"nobody waits for", 1, ACK))
            sent = node.begin_send(listener.host, listener.port, b"x")
            message = await link.read_frame()
            link.send(Frame(b"not the right id", message.serial, ACK))
            assert await link.silent(0.2)
            assert not sent.done()
            link.send(Frame(message.identity, 0, ACK))
            link.send(Frame(message.identity, 0, ACK))
            await asyncio.wait_for(sent, BOUND)
            again = node.begin_send(listener.host, listener.port, b"y")
            message = await link.read_frame()
            assert message.data == b"y"
            link.acknowledge(message)
            await asyncio.wait_for(again, BOUND)

    async def test_upper_bits_do_not_hide_an_acknowledgement(self) -> None:
        """An acknowledgement with the refusal bit reads as success: a refusal must never go to libchirp."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener, raw_link(node, listener) as link:
            sent = node.begin_send(listener.host, listener.port, b"x")
            message = await link.read_frame()
            link.send(Frame(message.identity, 1, ACK | 0x08))
            await asyncio.wait_for(sent, BOUND)

    async def test_a_synchronous_node_has_one_in_flight(self) -> None:
        """The next message leaves when the last one was acknowledged."""
        async with libchirp_node(mode="sync") as node, raw_listener() as listener, raw_link(node, listener) as link:
            sends = [node.begin_send(listener.host, listener.port, b"%d" % number) for number in range(3)]
            for number, sent in enumerate(sends):
                message = await link.read_frame()
                assert message.data == b"%d" % number
                assert await link.silent(0.1)
                link.acknowledge(message)
                await asyncio.wait_for(sent, BOUND)


class TestFrames:
    @each_mode
    async def test_frames_may_be_split_anywhere(self, mode: Mode) -> None:
        """Preamble, header and data cut at every byte, each half read by itself, make the same message."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            for cut in range(1, 34):
                message = link.message(b"hello", header=b"HH")
                whole = message.encode()
                link.write(whole[:cut])
                await link.consumed()
                link.write(whole[cut:])
                received = await node.received()
                assert (received.identity, received.header, received.data) == (message.identity, b"HH", b"hello")
                assert (await link.read_frame()).identity == message.identity

    @each_mode
    async def test_frames_may_come_byte_by_byte(self, mode: Mode) -> None:
        """An announcement and a message, each byte read by itself, are understood."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            message = link.message(b"hello", header=b"HH")
            for byte in ANNOUNCEMENT.encode() + message.encode():
                link.write(bytes((byte,)))
                await link.consumed()
            assert (await node.received()).data == b"hello"
            assert (await link.read_frame()).identity == message.identity

    @each_mode
    async def test_an_empty_message_is_a_message(self, mode: Mode) -> None:
        """27 bytes with neither header nor data are delivered and acknowledged."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener, raw_link(node, listener) as link:
            message = link.message()
            link.send(message)
            received = await node.received()
            assert (received.header, received.data) == (b"", b"")
            assert (await link.read_frame()).identity == message.identity

    @each_mode
    async def test_a_large_header_and_body_arrive_whole(self, mode: Mode) -> None:
        """65,535 bytes of header and 4 MiB of data go both ways."""
        header, data = b"h" * 65535, bytes(range(256)) * (16 * 1024)
        async with (
            libchirp_node(mode=mode, on_message="reply") as node,
            raw_listener() as listener,
            raw_link(node, listener) as link,
        ):
            message = link.message(data, header=header)
            await link.write_all(message.encode())
            reply = await link.read_frame()
            assert (reply.identity, reply.header, reply.data) == (message.identity, header, data)

    async def test_unknown_bits_on_a_message_are_delivered(self) -> None:
        """Upper type bits on an ordinary message are not looked at."""
        async with libchirp_node(mode="async") as node, raw_listener() as listener, raw_link(node, listener) as link:
            for bit in (0x08, 0x10, 0x20, 0x40, 0x80):
                message = link.message(b"%d" % bit, kind=REQ_ACK | bit)
                link.send(message)
                assert (await node.received()).data == b"%d" % bit
                assert (await link.read_frame()).kind == ACK

    async def test_the_longest_message_is_taken_and_one_byte_more_closes(self) -> None:
        """Header and data together count against the receiver's limit; the preamble does not."""
        async with libchirp_node(max_message=1000) as node, raw_listener() as listener:
            async with raw_link(node, listener) as link:
                link.send(link.message(b"d" * 900, header=b"h" * 100))
                assert (await link.read_frame()).kind == ACK
                link.send(link.message(b"d" * 900, header=b"h" * 101))
                assert await link.read_all() == b""
            assert len((await node.received()).data) == 900
            assert await node.nothing_received(0.1)

    @pytest.mark.parametrize(
        "frame",
        [
            pytest.param(Frame(IDENTITY, 1, ACK, b"", b"x"), id="acknowledgement with data"),
            pytest.param(Frame(IDENTITY, 1, ACK, b"x", b""), id="acknowledgement with header"),
            pytest.param(Frame(IDENTITY, 1, ACK | REQ_ACK), id="acknowledgement with REQ_ACK"),
            pytest.param(Frame(IDENTITY, 1, NOOP, b"", b"x"), id="NOOP with data"),
            pytest.param(Frame(IDENTITY, 1, NOOP, b"x", b""), id="NOOP with header"),
            pytest.param(Frame(IDENTITY, 1, NOOP | REQ_ACK), id="NOOP with REQ_ACK"),
        ],
    )
    @each_mode
    async def test_an_illegal_frame_closes(self, mode: Mode, frame: Frame) -> None:
        """Control frames that carry anything close the connection, without a word, and the next one works."""
        async with libchirp_node(mode=mode) as node, raw_listener() as listener:
            async with raw_link(node, listener) as link:
                link.send(frame)
                assert await link.read_all() == b""
            async with raw_link(node, listener) as link:
                link.send(link.message())
                assert (await link.read_frame()).kind == ACK
