"""The bytes a redpoll node writes toward libchirp: libchirp's own, but for the announcement."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from redpoll import Message, Node
from tests.interop.libchirp_node import Mode, libchirp_node
from tests.interop.nodes import (
    Inbox,
    dialled_libchirp,
    dialling_libchirp,
    each_mode,
    port_of,
    text_address,
    within_bound,
)
from tests.interop.raw import (
    ACK,
    BOUND,
    NOOP,
    REQ_ACK,
    DisconnectedError,
    Frame,
    RawLink,
    RawListener,
    handshake,
    raw_listener,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]

each_role = pytest.mark.parametrize("dials", ["it dials", "it is dialled"])

#: A header, a body; what the node under test is to do with them.
Start = Callable[[bytes, bytes], Awaitable[Any]]


def normalised(frames: list[Frame]) -> list[Frame]:
    """With serials counted from the first and identities numbered as they appear: what chance decides is gone."""
    numbers: dict[bytes, int] = {bytes(16): 0}
    return [
        replace(
            frame,
            serial=(frame.serial - frames[0].serial) & 0xFFFFFFFF,
            identity=numbers.setdefault(frame.identity, len(numbers)).to_bytes(16, "big"),
        )
        for frame in frames
    ]


async def converse(link: RawLink, send: Start, request: Start, asked: Callable[[], Awaitable[None]]) -> list[Frame]:
    """Hold one conversation with a node that sends every message back; return all that it wrote."""
    written: list[Frame] = []

    async def next_message() -> Frame:
        frame = await link.read_frame()
        written.append(frame)
        if frame.kind == REQ_ACK:
            link.acknowledge(frame)
        return frame

    for header, data in ((b"", b""), (b"HH", b"data"), (b"h" * 300, b"d" * 100_000)):
        sent = asyncio.ensure_future(send(header, data))
        await next_message()
        await within_bound(sent)
        # A message of ours, marked and not, each sent back by its handler.
        link.send(link.message(b"to be sent back", header=header))
        await next_message()
        await next_message()
        link.send(link.message(b"to be sent back", kind=0, header=header))
        await next_message()
        requested = asyncio.ensure_future(request(header, data))
        question = await next_message()
        await asked()
        link.send(link.message(b"answer", identity=question.identity))
        await next_message()
        await within_bound(requested)
    return written


@contextlib.asynccontextmanager
async def opened(
    listener: RawListener, port: int, dials: str, send: Start
) -> AsyncIterator[tuple[RawLink, list[Frame]]]:
    """A connection to the node at `port` in either role, and what the node wrote to get it."""
    if dials == "it dials":
        sent = asyncio.ensure_future(send(b"", b"dial"))
        link = await listener.accept()
    else:
        sent = None
        link = await RawLink.dial("127.0.0.1", port)
    try:
        link.write(handshake(listener.port, b"I" * 16))
        assert (await link.read_handshake())[0] == port
        first: list[Frame] = []
        if sent is not None:
            first.append(await link.read_frame())
            if first[0].kind == NOOP:  # the announcement
                first[0] = await link.read_frame()
            if first[0].kind == REQ_ACK:
                link.acknowledge(first[0])
            await within_bound(sent)
        yield link, first
    finally:
        link.close()


class TestComparison:
    @each_role
    @each_mode
    async def test_the_same_conversation_gives_the_same_bytes(self, mode: Mode, dials: str) -> None:
        """Sends, replies, acknowledgements and requests are frame for frame what libchirp writes in the same place."""
        async with raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            async with libchirp_node(mode=mode, on_message="reply") as chirp:

                def chirp_does(what: str) -> Start:
                    return lambda header, data: chirp.begin(
                        what, address=listener.host, port=listener.port, header=header.hex(), data=data.hex()
                    )

                async with opened(listener, chirp.port, dials, chirp_does("send")) as (link, first):
                    theirs = first + await converse(link, chirp_does("send"), chirp_does("request"), chirp.asked)
                    await chirp.kill()
                    assert await link.read_all() == b""

            async def handler(message: Any) -> None:
                await message.node.send(message)

            async with Node(handler, port=0, acknowledge=mode == "sync") as node:

                def send(header: bytes, data: bytes) -> Awaitable[Any]:
                    return node.send(Message(data, address, header=header))

                def request(header: bytes, data: bytes) -> Awaitable[Any]:
                    return node.request(Message(data, address, header=header))

                async def asked() -> None:
                    """A redpoll node waits for the answer from the moment it asks."""

                async with opened(listener, port_of(node), dials, send) as (link, first):
                    if dials == "it is dialled":
                        assert (await link.read_frame()).kind == NOOP  # the announcement
                    ours = first + await converse(link, send, request, asked)
                    await node.stop()
                    assert await link.read_all() == b""
        assert normalised(ours) == normalised(theirs)


class TestOpening:
    @each_role
    async def test_it_is_one_write(self, dials: str) -> None:
        """Handshake and announcement arrive together, unprompted, and nothing follows before the other's handshake."""
        async with Node(port=0) as node, raw_listener() as listener:
            sent = node.send(Message(b"x", text_address(listener.host, listener.port)), timeout=5)
            link = await (listener.accept() if dials == "it dials" else RawLink.dial("127.0.0.1", port_of(node)))
            opening = await link.read_available()
            assert opening[:18] == handshake(port_of(node), node.identity)
            assert len(opening) == 45
            assert opening[18 + 16 + 4 :] == bytes(6) + bytes((NOOP,))
            assert await link.silent(0.2)
            link.close()
            listener.close()
            sent.cancel()

    async def test_the_public_port_is_announced(self) -> None:
        """`public_port` stands in the handshake instead of the port that is listened on."""
        async with Node(port=0, public_port=4321) as node, raw_listener() as listener:
            link = await RawLink.dial("127.0.0.1", node.listening[0].port)
            assert await link.read_handshake() == (4321, node.identity)
            link.close()
            listener.close()

    async def test_a_handshake_in_pieces_is_taken(self) -> None:
        """Redpoll is more patient than libchirp: handshake and message may come byte by byte."""
        inbox = Inbox()
        async with Node(inbox, port=0) as node, raw_listener() as listener:
            link = await RawLink.dial("127.0.0.1", port_of(node))
            message = link.message(b"hello", header=b"HH")
            for byte in handshake(listener.port, b"I" * 16) + message.encode():
                link.write(bytes((byte,)))
                await link.consumed()
            assert (await inbox.next()).data == b"hello"
            await link.read(45)
            assert (await link.read_frame()).identity == message.identity
            link.close()


class TestSending:
    async def test_one_acknowledged_message_at_a_time(self) -> None:
        """The next marked message is written when the last one was acknowledged."""
        async with Node(port=0, acknowledge=True) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            sends = [node.send(Message(b"%d" % number, address)) for number in range(5)]
            async with dialled_libchirp(listener) as link:
                for number, sent in enumerate(sends):
                    message = await link.read_frame()
                    assert (message.data, message.kind) == (b"%d" % number, REQ_ACK)
                    assert await link.silent(0.05)
                    assert not sent.done()
                    link.acknowledge(message)
                    await within_bound(sent)

    async def test_unacknowledged_messages_are_not_held_back(self) -> None:
        """Messages that ask for no acknowledgement follow each other without one."""
        async with Node(port=0, acknowledge=False) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            sends = [node.send(Message(b"%d" % number, address)) for number in range(100)]
            async with dialled_libchirp(listener) as link:
                frames = [await link.read_frame() for _ in sends]
                assert [frame.data for frame in frames] == [b"%d" % number for number in range(100)]
                assert {frame.kind for frame in frames} == {0}
                await within_bound(asyncio.gather(*sends))

    async def test_a_late_acknowledgement_is_not_taken_for_the_next(self) -> None:
        """After a timeout the link is closed, as libchirp does, so that no acknowledgement can be mistaken."""
        async with Node(port=0) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            first = node.send(Message(b"first", address), timeout=0.3)
            async with dialled_libchirp(listener) as link:
                message = await link.read_frame()
                with pytest.raises(TimeoutError):
                    await within_bound(first)
                assert await link.read_all() == b""
            second = node.send(Message(b"second", address))
            async with dialled_libchirp(listener) as newer:
                newer.acknowledge(message)
                assert (await newer.read_frame()).data == b"second"
                assert await newer.silent(0.1)
                assert not second.done()
                second.cancel()

    async def test_upper_bits_of_a_libchirp_peer_mean_nothing(self) -> None:
        """Bits that are redpoll's between redpoll nodes are not looked at on a link that did not announce itself."""
        inbox = Inbox()
        async with Node(inbox, port=0) as node, raw_listener() as listener, dialling_libchirp(node, listener) as link:
            for bit in (0x08, 0x10, 0x20, 0x40, 0x80):
                message = link.message(b"%d" % bit, kind=REQ_ACK | bit)
                link.send(message)
                assert (await inbox.next()).data == b"%d" % bit
                answer = await link.read_frame()
                assert (answer.identity, answer.kind) == (message.identity, ACK)
                sent = node.send(Message(b"back", text_address(listener.host, listener.port)))
                link.send(Frame((await link.read_frame()).identity, 1, ACK | bit))
                await within_bound(sent)

    async def test_a_probe_precedes_the_first_message_after_a_rest(self) -> None:
        """On a link idle for more than three quarters of `reuse_time` a NOOP, identity blank, comes first."""
        async with Node(port=0, timeout=0.5, reuse_time=1.6) as node, raw_listener() as listener:
            address = text_address(listener.host, listener.port)
            first = node.send(Message(b"first", address))
            async with dialled_libchirp(listener) as link:
                message = await link.read_frame()
                link.acknowledge(message)
                await within_bound(first)
                assert await link.silent(1.3)
                second = node.send(Message(b"second", address))
                probe, message = await link.read_frame(), await link.read_frame()
                assert (probe.identity, probe.kind, probe.header, probe.data) == (bytes(16), NOOP, b"", b"")
                assert (message.data, message.serial) == (b"second", probe.serial + 1)
                link.acknowledge(message)
                await within_bound(second)


class TestNothingElse:
    async def test_no_extension_ever_reaches_libchirp(self) -> None:
        """Whatever a node does, it writes messages of type 0 and 1, bare acknowledgements and blank NOOPs."""

        async def handler(message: Any) -> bytes | None:
            match message.data:
                case b"raise":
                    raise RuntimeError("the work failed")
                case b"refuse":
                    message.refuse("not today")
                case b"answer":
                    return b"answer"
                case b"forward":
                    await message.node.send(message.forward(address))
            return None

        async def watch(link: RawLink) -> None:
            while True:
                frame = await link.read_frame()
                frames.append(frame)
                if frame.kind == REQ_ACK and frame.data != b"ignore":
                    link.acknowledge(frame)

        frames: list[Frame] = []
        async with (
            raw_listener() as listener,
            Node(handler, port=0, keepalive=0.1, fragment_size=4096, slots=4, window=4) as node,
        ):
            address = text_address(listener.host, listener.port)
            async with dialling_libchirp(node, listener) as link:
                watching = asyncio.ensure_future(watch(link))
                for data in (b"plain", b"raise", b"refuse", b"answer", b"forward"):
                    for kind in (REQ_ACK, 0):
                        link.send(link.message(data, kind=kind))
                for _ in range(50):  # enough for credit to be given back, were this a redpoll peer
                    link.send(link.message(b"plain", kind=0))
                await within_bound(node.send(Message(b"large" * 20_000, address), timeout=5))
                await within_bound(node.send(Message(b"plain", address), acknowledge=False))
                await within_bound(node.send(Message(b"retried", address), retry=2))
                assert await within_bound(node.send_many(Message(b"many", address) for _ in range(20))) == 20
                with pytest.raises(TimeoutError):
                    await within_bound(node.request(Message(b"unanswered", address), timeout=0.3))
                cancelled = node.send(Message(b"cancelled", address))
                cancelled.cancel()
                with pytest.raises(TimeoutError):
                    await within_bound(node.send(Message(b"ignore", address), timeout=0.5))
                with pytest.raises(DisconnectedError):  # the node closes: an acknowledgement is missing
                    await asyncio.wait_for(watching, BOUND)
            await node.stop()
        assert {frame.kind for frame in frames} <= {0, REQ_ACK, ACK, NOOP}
        for frame in frames:
            if frame.kind == ACK:
                assert (frame.header, frame.data) == (b"", b"")
            elif frame.kind == NOOP:
                assert frame == Frame(bytes(16), frame.serial, NOOP)
        serials = [frame.serial for frame in frames]
        # Acknowledgements pass a large body that waits for the transport: each number is used once, not in order.
        assert sorted(serials) == list(range(min(serials), min(serials) + len(serials)))
        sent = [frame.data for frame in frames if frame.kind == REQ_ACK]
        for data in (b"answer", b"forward", b"large" * 20_000, b"retried", b"many", b"unanswered", b"ignore"):
            assert data in sent
        assert b"plain" in [frame.data for frame in frames if frame.kind == 0]
        # "raise" and "refuse" are not acknowledged; the other three marked ones are.
        assert sum(frame.kind == ACK for frame in frames) == 3
