"""Time: what a timeout covers, what ends with it and how, and what the handler sees of it."""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Any

import pytest

from redpoll import (
    Address,
    DialFailed,
    Expired,
    HandlerFailed,
    Message,
    NoAnswer,
    NotConfirmed,
    NotSent,
    PeerLost,
    Received,
    SendError,
)
from redpoll.errors import ConfirmTimeout
from tests.interop.raw import ACK, REQ_ACK, Frame, raw_listener
from tests.node.support import Inbox, elapse, make, raw_accepting, raw_dialling, settle, to, turns, until, within

ANSWER, METADATA, CONTINUED, FRAGMENT, CANCEL = 0x20, 0x40, 0x80, 0x34, 0x2C
PING, PONG = 0x0C, 0x14


def is_late(error: BaseException) -> bool:
    """Whether an error is one that a caller who waits with a timeout looks for."""
    return isinstance(error, TimeoutError)


# Which timeout


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"timeout": 0.05}])
async def test_an_unset_timeout_is_the_configs(options: dict[str, Any]) -> None:
    """Without a timeout of its own a send has that of the Config; one of its own goes before it."""
    config = 0.05 if not options else 60.0
    async with make(timeout=config) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        for call in (client.send, client.request):
            with pytest.raises(Expired) as caught:
                await within(call(Message(b"", address), **options))
            assert caught.value.timeout == 0.05


@pytest.mark.asyncio
async def test_no_timeout_is_no_limit() -> None:
    """timeout=None waits as long as it takes, whatever the Config says, and the handler sees no deadline."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make(timeout=0.02) as client:
        patient, impatient = client.send(to(server), timeout=None), client.send(to(server))
        await inbox.holds(1)
        with pytest.raises(SendError):
            await within(impatient)
        assert not patient.done()
        assert inbox.messages[0].deadline is None
        inbox.gate.set()
        await within(patient)


@pytest.mark.asyncio
async def test_a_config_without_a_timeout_limits_nothing() -> None:
    """Config.timeout=None is no limit either."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make(timeout=None) as client:
        sending = client.send(to(server))
        await inbox.holds(1)
        assert inbox.messages[0].deadline is None
        inbox.gate.set()
        await within(sending)


# What it covers


@pytest.mark.asyncio
async def test_a_timeout_covers_dialling() -> None:
    """While nobody listens a send ends with its timeout as Expired: not sent, a TimeoutError."""
    async with make() as client, make() as gone:
        address = gone.address
        await gone.stop()
        with pytest.raises(Expired) as caught:
            await within(client.send(Message(b"", address), timeout=0.5))
        error = caught.value
        assert (error.sent, error.timeout, error.address) == (False, 0.5, address)
        assert isinstance(error, NotSent)
        assert is_late(error)
        assert isinstance(error.__cause__, DialFailed)
        what = f"message to {address} was not sent: still waiting to be sent after 0.5 s"
        assert str(error) == f"{what}: cannot connect: Connection refused"
        await until(lambda: not client.peers, "the peer to be forgotten")


@pytest.mark.asyncio
async def test_a_timeout_covers_a_handshake_that_does_not_come() -> None:
    """Who accepts and says nothing lets a send expire, not sent."""
    async with make() as client, raw_listener() as listener:
        with pytest.raises(Expired, match=r"still waiting to be sent after 0\.05 s"):
            await within(client.send(Message(b"", Address("tcp", "127.0.0.1", listener.port)), timeout=0.05))


@pytest.mark.asyncio
async def test_a_timeout_covers_the_queue() -> None:
    """Behind a full window a send that waits here ends as Expired, and never reaches the peer."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make() as client:
        await client.ready(server.address)
        first = client.send(to(server, b"first"), timeout=None)
        with pytest.raises(Expired) as caught:
            await within(client.send(to(server, b"second"), timeout=0.05))
        assert caught.value.sent is False
        assert client.stats().queued == 0
        inbox.gate.set()
        await within(first)
        await within(client.send(to(server, b"third")))
    assert inbox.begun == [b"first", b"third"]


@pytest.mark.asyncio
async def test_a_timeout_covers_the_work() -> None:
    """A message that is being handled when its time ends fails as ConfirmTimeout: it may have been handled."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        await client.ready(server.address)
        for call in (client.send, client.request):
            with pytest.raises(ConfirmTimeout) as caught:
                await within(call(to(server), timeout=0.4))
            error = caught.value
            assert (error.sent, error.timeout) == (True, 0.4)
            assert isinstance(error, NotConfirmed)
            assert is_late(error)
            assert re.match(
                rf"message to {server.address} was sent, but not confirmed: no acknowledgement within 0.4 s", str(error)
            )
            inbox.gate.set()
            await until(lambda: client.stats().in_flight == 0, "the acknowledgement")
            inbox.gate.clear()
        inbox.gate.set()


@pytest.mark.asyncio
async def test_a_timeout_covers_the_answer() -> None:
    """A request that is done, but not answered, when its time ends fails as NoAnswer."""
    held: list[Received[bytes]] = []

    async def handler(message: Received[bytes]) -> None:
        message.release()
        held.append(message)

    async with make(handler) as server, make() as client:
        await client.ready(server.address)
        with pytest.raises(NoAnswer) as caught:
            await within(client.request(to(server), timeout=0.4))
        assert caught.value.timeout == 0.4
        assert is_late(caught.value)
        await held[0].respond(b"late")
        await until(lambda: client.stats().late == 1, "the late answer to be counted")


@pytest.mark.asyncio
async def test_a_late_answer_is_counted_and_never_delivered() -> None:
    """An answer to a request that nobody waits for reaches neither a handler nor a consumer."""
    gate = asyncio.Event()
    inbox = Inbox()

    async def handler(message: Received[bytes]) -> bytes:
        await gate.wait()
        return b"too late"

    async with make(handler) as server, make(inbox) as client:
        await client.ready(server.address)
        with pytest.raises(ConfirmTimeout):
            await within(client.request(to(server), timeout=0.4))
        gate.set()
        await until(lambda: client.stats().late == 1, "the late answer")
        assert client.stats().in_flight == 0
        assert (client.stats().received, inbox.messages) == (0, [])
        assert (await within(client.request(to(server)))).data == b"too late"


@pytest.mark.asyncio
async def test_a_timeout_of_zero_is_over_at_once() -> None:
    """With timeout=0 a send ends at once, and is not begun where its time is over before."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make() as client:
        await client.ready(server.address)
        first = client.send(to(server), timeout=None)
        with pytest.raises(Expired):
            await within(client.send(to(server), timeout=0))
        inbox.gate.set()
        await within(first)


# What the peer does


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_what_waits_in_the_peers_inbox_is_withdrawn(how: str) -> None:
    """A message that is not begun when its sender gives it up never is: not sent, safe to send again."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=1) as server, make() as client:
        await client.ready(server.address)
        first = client.send(to(server, b"first"), timeout=None)
        second = client.send(to(server, b"second"), timeout=0.4 if how == "timeout" else None)
        third = client.send(to(server, b"third"), timeout=None)
        await until(lambda: server.stats().received == 3, "all three")
        if how == "cancel":
            second.cancel()
        else:
            with pytest.raises(Expired) as caught:
                await within(second)
            assert caught.value.sent is False
            assert str(caught.value) == (
                f"message to {server.address} was not sent: still waiting in the peer's inbox after 0.4 s"
                " (the remote handler is slower than the timeout or blocks its event loop, or no"
                " consumer takes messages there)"
            )
        await until(lambda: client.stats().in_flight == 2, "the withdrawn message's place")
        assert server.stats().refused == 1
        inbox.gate.set()
        await within(asyncio.gather(first, third))
    assert inbox.begun == [b"first", b"third"]


@pytest.mark.asyncio
async def test_a_peer_begins_nothing_past_its_deadline() -> None:
    """Also where the withdrawal does not come, a message past its deadline is refused instead of begun."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=1) as server, raw_dialling(server, port=0) as link:
        deadline = struct.pack("!HBHI", 7, 1, 4, 20)
        first, second = link.message(b"first"), link.message(deadline + b"second", kind=REQ_ACK | METADATA)
        link.send(first)
        link.send(second)
        await until(lambda: server.stats().received == 2, "both")
        loop = asyncio.get_running_loop()
        late = loop.time() + 0.03
        await until(lambda: loop.time() > late, "the deadline to pass")
        inbox.gate.set()
        frames = {frame.serial: frame for frame in (await link.read_frame(), await link.read_frame())}
        assert (frames[first.serial].kind, frames[first.serial].data) == (ACK, b"")
        refusal = frames[second.serial]
        assert (refusal.kind, refusal.data[0]) == (ACK | 0x08, 8)
        assert b"its deadline passed before it began" in refusal.data
    assert inbox.begun == [b"first"]


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_what_is_handled_goes_on(how: str) -> None:
    """A handler is told that its sender gave up, and goes on; its place in the window is kept until it ends."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make() as client:
        await client.ready(server.address)
        sending = client.send(to(server, b"first"), timeout=0.4 if how == "timeout" else None)
        await inbox.holds(1)
        message = inbox.messages[0]
        if how == "cancel":
            assert not message.cancelled.is_set()
            sending.cancel()
        await within(message.cancelled.wait())
        await settle(sending)
        assert not message.ended
        assert client.stats().in_flight == 1
        second = client.send(to(server, b"second"), timeout=None)
        await turns()
        assert client.stats().queued == 1, "the place is still taken"
        inbox.gate.set()
        await within(second)
    assert inbox.ended == [b"first", b"second"]
    assert inbox.cancelled == 0


@pytest.mark.asyncio
async def test_the_handler_sees_the_deadline() -> None:
    """`deadline` is when the sender gives up, on the loop's clock."""
    inbox = Inbox()
    async with make(inbox) as server, make(timeout=7.0) as client:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await client.send(to(server))
        await client.send(to(server), timeout=100)
        after = loop.time()
        first, second = (message.deadline for message in inbox.messages)
        assert first is not None
        assert second is not None
        assert before + 6.9 < first <= after + 7.0
        assert before + 99.9 < second <= after + 100.0


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("asked_by", ["config", "request"])
async def test_a_handler_is_cancelled_only_where_asked(how: str, asked_by: str) -> None:
    """With cancel_handlers, or request(cancel=True), giving up cancels the handler's task and refuses its message."""
    inbox = Inbox(hold=True)
    async with make(inbox, cancel_handlers=asked_by == "config") as server, make() as client:
        await client.ready(server.address)
        asking = client.request(to(server), timeout=0.4 if how == "timeout" else None, cancel=asked_by == "request")
        await inbox.holds(1)
        if how == "cancel":
            asking.cancel()
        else:
            with pytest.raises(ConfirmTimeout) as caught:
                await within(asking)
            assert caught.value.sent is True
        await until(lambda: inbox.cancelled == 1, "the handler to be cancelled")
        await until(lambda: client.stats().in_flight == 0, "the refusal")
        assert inbox.messages[0].cancelled.is_set()
        assert (server.stats().refused, server.stats().slots_used) == (1, 0)


@pytest.mark.asyncio
async def test_a_handler_is_cancelled_once() -> None:
    """However often a peer says that it gave up, what a handler does as it ends is not cancelled."""
    tidying, gate, tidied = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(message: Received[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await gate.wait()
            tidied.set()

    cancel = Frame(bytes(16), 7, CANCEL, data=b"\x01").encode()
    async with make(handler) as server, raw_dialling(server, port=0) as link:
        link.write(Frame(bytes(16), 7, REQ_ACK).encode())
        await until(lambda: server.stats().slots_used == 1, "the handler")
        link.write(cancel)
        await within(tidying.wait())
        link.write(cancel + cancel + Frame(bytes(16), 1, PING).encode())
        assert (await within(link.read(27)))[26] == PONG
        gate.set()
        await within(tidied.wait())


@pytest.mark.asyncio
async def test_a_send_is_no_reason_to_cancel_a_handler() -> None:
    """Without cancel_handlers a plain send that is given up cancels nothing."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        sending = client.send(to(server), timeout=None)
        await inbox.holds(1)
        sending.cancel()
        await within(inbox.messages[0].cancelled.wait())
        await turns()
        inbox.gate.set()
        await until(lambda: inbox.ended, "the handler to end")
    assert inbox.cancelled == 0


# Large bodies


@pytest.mark.asyncio
async def test_while_a_large_body_moves_its_time_begins_anew() -> None:
    """A transfer that takes longer than the timeout succeeds as long as there is progress within it."""
    async with make(fragment_size=65_536) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        loop = asyncio.get_running_loop()
        sending = client.send(Message(bytes(6_000_000), address), timeout=2.0)
        async with raw_accepting(listener, window_units=65_535) as link:
            began = loop.time()
            first = await link.read_frame()
            assert first.kind & CONTINUED
            got = len(first.data) - struct.calcsize("!HBHIQ")
            while got < 6_000_000:
                fragment = await link.read_frame()
                assert (fragment.kind, fragment.serial) == (FRAGMENT, first.serial)
                got += len(fragment.data)
                await elapse(0.025)
            assert loop.time() - began > 2.0
            link.send(Frame(first.identity, first.serial, ACK))
            await within(sending)


@pytest.mark.asyncio
async def test_while_a_large_answer_progressed_its_time_begins_anew() -> None:
    """An answer that takes longer to arrive than the timeout comes, as long as there is progress within it."""
    async with make() as client, raw_listener() as listener:
        loop = asyncio.get_running_loop()
        asking = client.request(Message(b"large?", Address("tcp", "127.0.0.1", listener.port)), timeout=1.0)
        async with raw_accepting(listener) as link:
            began = loop.time()
            asked = await link.read_frame()
            kind = ACK | ANSWER | CONTINUED
            link.send(Frame(asked.identity, asked.serial, kind, data=struct.pack("!Q", 20)))
            for _ in range(20):
                await elapse(0.07)
                link.send(Frame(asked.identity, asked.serial, FRAGMENT, data=b"x"))
            assert bytes((await within(asking)).data) == b"x" * 20
            assert loop.time() - began > 1.0


@pytest.mark.asyncio
async def test_a_large_body_that_does_not_move_ends_in_time() -> None:
    """A transfer without progress ends with its timeout, and as not all of it was written it was not sent."""
    async with make(fragment_size=65_536) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = client.send(Message(bytes(30_000_000), address), timeout=0.5)
        async with raw_accepting(listener, window_units=65_535) as link:
            with pytest.raises(Expired) as caught:
                await within(sending)
            assert caught.value.sent is False
            assert client.peers[0].connected, "the link goes on"
            assert await link.read_available()


@pytest.mark.asyncio
async def test_a_large_bodys_deadline_counts_from_its_last_fragment() -> None:
    """The receiver counts the time a message has from the end of its transfer, as the sender does."""
    inbox = Inbox()
    loop = asyncio.get_running_loop()
    async with make(inbox) as server, raw_dialling(server, port=0) as link:
        block = struct.pack("!HBHI", 7, 1, 4, 200) + struct.pack("!Q", 8)
        first = link.message(block + b"half", kind=REQ_ACK | METADATA | CONTINUED)
        link.send(first)
        later = loop.time() + 0.22
        await until(lambda: loop.time() > later, "the first deadline to pass")
        link.send(Frame(first.identity, first.serial, FRAGMENT, data=b"half"))
        frame = await link.read_frame()
        assert (frame.kind, frame.data) == (ACK, b"")
    assert inbox.begun == [b"halfhalf"]


# Toward libchirp


@pytest.mark.asyncio
async def test_toward_libchirp_a_late_message_closes_the_link() -> None:
    """A message that libchirp does not acknowledge in time fails, and its link is closed, as libchirp does."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = client.send(Message(b"first", address), timeout=0.5)
        async with raw_accepting(listener, redpoll=False) as link:
            frame = await link.read_frame()
            behind = client.send(Message(b"behind", address), timeout=None)
            with pytest.raises(ConfirmTimeout) as caught:
                await within(sending)
            assert caught.value.sent is True
            assert await link.read_all() == b""
        async with raw_accepting(listener, redpoll=False) as link:
            again = await link.read_frame()
            assert (frame.data, again.data) == (b"first", b"behind")
            link.acknowledge(again)
            await within(behind)


@pytest.mark.asyncio
async def test_toward_libchirp_a_cancelled_message_keeps_its_place() -> None:
    """What was sent to libchirp cannot be asked back: the next message waits for its acknowledgement."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = client.send(Message(b"first", address), timeout=30)
        async with raw_accepting(listener, redpoll=False) as link:
            frame = await link.read_frame()
            sending.cancel()
            behind = client.send(Message(b"behind", address))
            await turns()
            assert client.stats().queued == 1
            link.acknowledge(frame)
            second = await link.read_frame()
            assert second.data == b"behind"
            link.acknowledge(second)
            await within(behind)


# Forwarding


@pytest.mark.asyncio
async def test_a_forwarded_message_inherits_what_is_left() -> None:
    """The next hop has what is left of the deadline, a little less; a timeout of its own goes before it."""
    inbox = Inbox()
    async with make(inbox) as last:

        async def forward(message: Received[bytes]) -> None:
            await message.node.send(message.forward(last.address))
            await message.node.send(message.forward(last.address), timeout=50)
            await message.node.send(message.forward(last.address), timeout=None)
            await message.node.send(Message(b"not forwarded", last.address))

        async with make(forward, timeout=20.0) as middle, make() as client:
            loop = asyncio.get_running_loop()
            start = loop.time()
            await within(client.send(to(middle), timeout=10))
            await within(client.send(to(middle), timeout=None))
            end = loop.time()
    left = [None if message.deadline is None else message.deadline - start for message in inbox.messages]
    took = end - start
    assert left[0] is not None
    assert 9.0 < left[0] < 9.31 + took, "less than the ten seconds, by what asking back and the way back take"
    assert [each is None for each in left] == [False, False, True, False, False, False, True, False]
    for own, expected in ((left[1], 50), (left[3], 20), (left[4], 20), (left[5], 50)):
        assert own is not None
        assert expected - 0.1 < own < expected + took + 0.01


@pytest.mark.asyncio
async def test_a_failed_forward_refuses_with_the_last_hops_error() -> None:
    """When a forwarded message fails the first sender learns it in time, with an error that names the last hop."""
    inbox = Inbox(hold=True)
    async with make(inbox) as last:

        async def forward(message: Received[bytes]) -> None:
            await message.node.send(message.forward(last.address))

        async with make(forward) as middle, make() as client:
            with pytest.raises(HandlerFailed) as caught:
                await within(client.send(to(middle), timeout=1.0))
            text = str(caught.value)
            assert text.startswith(f"message to {middle.address} was refused: the handler failed: ")
            assert f"message to {last.address} was sent, but not confirmed: no acknowledgement" in text
            inbox.gate.set()


@pytest.mark.asyncio
async def test_a_refusal_of_the_last_hop_comes_through(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal further on refuses the incoming message with its text."""

    def refuses(message: Received[bytes]) -> None:
        message.refuse("out of paper")

    async with make(refuses) as last:

        async def forward(message: Received[bytes]) -> None:
            await message.node.send(message.forward(last.address))

        async with make(forward) as middle, make() as client:
            with pytest.raises(HandlerFailed, match=f"message to {last.address} was refused: out of paper"):
                await within(client.send(to(middle)))


@pytest.mark.asyncio
async def test_a_reply_has_a_time_of_its_own() -> None:
    """A received message that is sent back, or answered with reply(), is not bound by the deadline it came with."""
    held: list[Received[bytes]] = []
    replies = Inbox()
    async with make(held.append) as server, make(replies) as client:
        loop = asyncio.get_running_loop()
        await within(client.send(to(server), timeout=0.5))
        over = loop.time() + 0.51
        await until(lambda: loop.time() > over, "the deadline to pass")
        await within(server.send(held[0]))
        await within(server.send(held[0].reply(b"reply")))
    assert replies.begun == [b"x", b"reply"]


# Unacknowledged messages


@pytest.mark.asyncio
async def test_an_unacknowledged_message_expires_in_the_queue() -> None:
    """A timeout covers what an unacknowledged send has to wait for: the queue here."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make(acknowledge=False) as client:
        await client.ready(server.address)
        await within(client.send(to(server, b"first")))
        with pytest.raises(Expired):
            await within(client.send(to(server, b"second"), timeout=0.05))
        inbox.gate.set()
        await within(client.send(to(server, b"third")))
        await until(lambda: len(inbox.ended) == 2, "the messages")
    assert inbox.begun == [b"first", b"third"]


@pytest.mark.asyncio
async def test_a_deadline_outlives_no_message() -> None:
    """Messages that end in time leave nothing that rings later."""
    async with make(lambda message: None) as server, make() as client:
        await within(asyncio.gather(*(client.send(to(server), timeout=3.0) for _ in range(500))))
        (peer,) = client._peers.routes
        await until(lambda: peer.next_deadline() is None, "the end of what was watched")
        assert client.stats().errors == 0


@pytest.mark.asyncio
async def test_a_link_lost_while_withdrawing_may_have_been_handled() -> None:
    """When the link is lost before the peer said whether it had begun, the message may have been handled."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = client.send(Message(b"x", address), timeout=0.5)
        async with raw_accepting(listener) as link:
            frame = await link.read_frame()
            cancel = await link.read_frame()
            assert (cancel.kind, cancel.serial) == (CANCEL, frame.serial)
            assert not sending.done(), "the peer is asked first"
        with pytest.raises(NotConfirmed) as caught:
            await within(sending)
        assert caught.value.sent is True
        assert isinstance(caught.value.__cause__, PeerLost) or is_late(caught.value)
