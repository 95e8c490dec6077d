"""retry=N: what was not confirmed is sent again, and a redpoll peer does nothing twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from redpoll import TLS, Address, HandlerFailed, Message, NotConfirmed, PeerLost, Received, Refused
from redpoll.errors import ConfirmTimeout, ShuttingDown, Withdrawn
from redpoll.testing import FaultProxy
from redpoll.testing.certificates import Certificates
from tests.interop.raw import ACK, REQ_ACK, Frame, raw_listener
from tests.node.support import PATIENCE, Inbox, Proxy, elapse, make, raw_accepting, raw_dialling, turns, until, within

RETRY = 0x08
GOODBYE = 0x1C


@pytest.mark.asyncio
@pytest.mark.parametrize("listens", [True, False])
async def test_what_was_handled_is_answered_again(listens: bool) -> None:
    """When the acknowledgement is lost with its link a resend is confirmed, and the handler does not run again."""
    inbox = Inbox()
    options: dict[str, Any] = {} if listens else {"listen": False}
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**options) as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        sending = client.send(Message(b"once", proxy.address), retry=1)
        await until(lambda: inbox.ended == [b"once"], "the handler to end")
        await proxy.cut()
        proxy.answers.set()
        await within(sending)
        assert inbox.begun == [b"once"]
        assert client.stats().sent == 2
        assert client.stats().errors == 1, "the link, and no send"


@pytest.mark.asyncio
@pytest.mark.parametrize("listens", [True, False])
async def test_what_is_being_handled_is_confirmed_when_it_ends(listens: bool) -> None:
    """A resend of a message whose handler still runs is confirmed by the end of that run."""
    inbox = Inbox(hold=True)
    options: dict[str, Any] = {} if listens else {"listen": False}
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**options) as client:
        sending = client.send(Message(b"once", proxy.address), retry=1, timeout=None)
        await inbox.holds(1)
        await proxy.cut()
        await until(lambda: client.stats().sent == 2, "the resend")
        await until(lambda: server.stats().connections == 1, "the new link")
        assert not sending.done()
        inbox.gate.set()
        await within(sending)
        assert inbox.begun == [b"once"]


@pytest.mark.asyncio
async def test_what_never_arrived_is_handled_on_its_resend() -> None:
    """A resend of a message that was lost on its way is handled, and says that it was sent again."""
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make() as client:
        await client.ready(proxy.address)
        await client.send(Message(b"first", proxy.address))
        proxy.questions.clear()
        sending = client.send(Message(b"second", proxy.address), retry=1)
        await until(lambda: client.stats().sent == 2, "the message to be written")
        await proxy.cut()
        proxy.questions.set()
        await within(sending)
        assert inbox.begun == [b"first", b"second"]
        assert [message.redelivered for message in inbox.messages] == [False, True]


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [4, 20_000])
@pytest.mark.parametrize("late", [True, False])
async def test_a_first_attempt_that_comes_after_the_second(redpoll_pki: Certificates, size: int, late: bool) -> None:
    """A certificate lets a node in at once whose older link is not read to its end: what that brings is not done again."""
    inbox = Inbox()
    tls: list[dict[str, Any]] = [
        {"tls": TLS(certificate=redpoll_pki.issue(name)), "encryption": True} for name in ("server", "client")
    ]
    async with make(inbox, **tls[0], keepalive=None) as server, FaultProxy(server.address) as proxy:
        async with make(**tls[1], listen=False, fragment_size=8_000) as client:
            await within(client.send(Message(b"hello", proxy.address)))
            (first,) = server._peers.connections
            if not late:
                inbox.gate.clear()
            proxy.freeze("forward", to="present")
            sending = client.send(Message(bytes(size), proxy.address), retry=1, timeout=None)
            await until(lambda: client.stats().in_flight == 1, "it to be written")
            (connection,) = client._peers.connections
            read = first.link.bytes_received
            connection.give_up(PeerLost(None, "cut"))
            await inbox.holds(2)
            if late:
                await within(sending)
            proxy.thaw("forward")
            await until(lambda: first.link.bytes_received > read + size, "the first attempt")
            inbox.gate.set()
            await within(sending)
            await turns()
            assert [len(each) for each in inbox.begun] == [5, size]


@pytest.mark.asyncio
async def test_a_refusal_is_remembered_too(caplog: pytest.LogCaptureFixture) -> None:
    """A resend of a message that was refused gets the same refusal, and is not handled again."""
    runs: list[bytes] = []

    def handler(message: Received[bytes]) -> None:
        runs.append(message.data)
        raise ValueError("no good")

    async with make(handler) as server, Proxy(server.address) as proxy, make() as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        sending = client.send(Message(b"once", proxy.address), retry=1)
        await until(lambda: runs, "the handler")
        await proxy.cut()
        proxy.answers.set()
        with pytest.raises(HandlerFailed, match="ValueError: no good"):
            await within(sending)
    assert runs == [b"once"]


@pytest.mark.asyncio
async def test_what_was_refused_is_not_retried() -> None:
    """A refusal is an end: it is raised at once, whatever retry says."""
    runs: list[bytes] = []

    def handler(message: Received[bytes]) -> None:
        runs.append(message.data)
        message.refuse("no")

    async with make(handler) as server, make() as client:
        with pytest.raises(Refused):
            await within(client.send(Message(b"x", server.address), retry=5))
        assert client.stats().sent == 1
    assert runs == [b"x"]


@pytest.mark.asyncio
async def test_what_is_past_its_time_is_not_retried() -> None:
    """A timeout is an end, whatever retry says, and one that was sent before may have been handled."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        await client.ready(server.address)
        with pytest.raises(ConfirmTimeout):
            await within(client.send(Message(b"x", server.address), retry=5, timeout=0.4))
        assert client.stats().sent == 1
        inbox.gate.set()


@pytest.mark.asyncio
async def test_without_retry_nothing_is_sent_again() -> None:
    """By default a message is sent at most once: what was in flight fails as not confirmed."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, Proxy(server.address) as proxy, make() as client:
        sending = client.send(Message(b"x", proxy.address), timeout=None)
        await inbox.holds(1)
        await proxy.cut()
        with pytest.raises(NotConfirmed):
            await within(sending)
        assert client.stats().sent == 1
        inbox.gate.set()


@pytest.mark.asyncio
async def test_a_retry_is_made_so_often() -> None:
    """retry=N resends N times; then the message fails as not confirmed."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", Address("tcp", "127.0.0.1", listener.port)), retry=2, timeout=None)
        frames = []
        for _ in range(3):
            async with raw_accepting(listener) as link:
                frames.append(await link.read_frame())
        with pytest.raises(NotConfirmed) as caught:
            await within(sending)
        assert caught.value.sent is True
        first, *again = frames
        assert first.kind & (REQ_ACK | RETRY) == REQ_ACK
        for resend in again:
            assert resend.kind & (REQ_ACK | RETRY) == REQ_ACK | RETRY
            assert (resend.serial, resend.identity, resend.data[-1:]) == (first.serial, first.identity, b"x")


@pytest.mark.asyncio
async def test_resends_keep_their_order() -> None:
    """Several messages that are sent again arrive in their order, before what waited behind them."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=4) as server, Proxy(server.address) as proxy, make() as client:
        await client.ready(proxy.address)
        proxy.questions.clear()
        sendings = [
            client.send(Message(str(number).encode(), proxy.address), retry=1, timeout=None) for number in range(8)
        ]
        await until(lambda: client.stats().sent == 4, "a window of messages")
        await proxy.cut()
        proxy.questions.set()
        inbox.gate.set()
        await within(asyncio.gather(*sendings))
    assert inbox.begun == [str(number).encode() for number in range(8)]


@pytest.mark.asyncio
async def test_without_the_bit_nothing_is_a_duplicate() -> None:
    """Two frames with one serial and identity are two messages, unless the second says that it is sent again."""
    inbox = Inbox()
    async with make(inbox, slots=4) as server, raw_dialling(server, port=0) as link:
        message = link.message(b"x")
        link.send(message)
        first = await link.read_frame()
        link.send(message)
        second = await link.read_frame()
        assert (first.kind, first.serial) == (second.kind, second.serial) == (ACK, message.serial)
        link.send(message.__class__(message.identity, message.serial, REQ_ACK | RETRY, b"", b"x"))
        again = await link.read_frame()
        assert (again.kind, again.serial) == (ACK, message.serial)
    assert inbox.begun == [b"x", b"x"]


@pytest.mark.asyncio
async def test_another_run_of_a_node_repeats_nothing() -> None:
    """A node that starts anew with its identity has other serials: what it sends is never taken for a resend."""
    inbox = Inbox()
    identity = b"the same node..."
    async with make(inbox) as server:
        for _ in range(3):
            async with make(identity=identity) as client:
                for _ in range(5):
                    await within(client.send(Message(b"x", server.address), retry=3))
    assert len(inbox.begun) == 15


@pytest.mark.asyncio
async def test_toward_libchirp_a_retry_may_run_twice() -> None:
    """A libchirp node knows no resend: it gets the message again, as a message like any other."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", Address("tcp", "127.0.0.1", listener.port)), retry=1, timeout=None)
        async with raw_accepting(listener, redpoll=False) as link:
            first = await link.read_frame()
        async with raw_accepting(listener, redpoll=False) as link:
            again = await link.read_frame()
            assert (first.kind, again.kind) == (REQ_ACK, REQ_ACK)
            assert (first.identity, first.data) == (again.identity, again.data)
            link.acknowledge(again)
            await within(sending)


@pytest.mark.asyncio
async def test_a_resend_waits_for_the_node_it_was_sent_to() -> None:
    """A message that was sent before and cannot be sent again in time may have been handled, and says so."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", Address("tcp", "127.0.0.1", listener.port)), retry=5, timeout=0.3)
        async with raw_accepting(listener) as link:
            await link.read_frame()
            listener.close()
        with pytest.raises(ConfirmTimeout) as caught:
            await within(sending)
        assert caught.value.sent is True


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("refusal", "outcome"), [(ShuttingDown, NotConfirmed), (Withdrawn, ConfirmTimeout)], ids=["unbegun", "withdrawn"]
)
async def test_a_refused_resend_is_not_safe_to_send_again(refusal: type[Refused], outcome: type[NotConfirmed]) -> None:
    """That a resend was not begun says nothing of what went out first: it fails as not confirmed, and says why."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", Address("tcp", "127.0.0.1", listener.port)), retry=1)
        async with raw_accepting(listener) as link:
            await link.read_frame()
        async with raw_accepting(listener) as link:
            again = await link.read_frame()
            link.send(Frame(again.identity, again.serial, ACK | RETRY, b"", bytes((refusal.code,)) + b"not now"))
            with pytest.raises(NotConfirmed) as caught:
                await within(sending)
    assert type(caught.value) is outcome
    assert caught.value.sent is True
    assert type(caught.value.__cause__) is refusal
    assert "not now" in str(caught.value.__cause__)


@pytest.mark.asyncio
async def test_a_refused_first_attempt_is_safe_to_send_again() -> None:
    """What was refused unbegun and went out once only is the refusal itself, which says that nothing was handled."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", Address("tcp", "127.0.0.1", listener.port)), retry=1)
        async with raw_accepting(listener) as link:
            first = await link.read_frame()
            link.send(Frame(first.identity, first.serial, ACK | RETRY, b"", bytes((ShuttingDown.code,))))
            with pytest.raises(ShuttingDown) as caught:
                await within(sending)
    assert caught.value.sent is False


@pytest.mark.asyncio
@pytest.mark.parametrize("listens", [True, False])
async def test_what_ends_while_its_sender_is_away_is_not_done_again(listens: bool) -> None:
    """A message whose handler ends when its sender has no link is answered when that one is back and sends it again."""
    inbox = Inbox(hold=True)
    options: dict[str, Any] = {} if listens else {"listen": False}
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**options) as client:
        await client.ready(proxy.address)
        sending = client.send(Message(b"once", proxy.address), retry=3, timeout=None)
        await inbox.holds(1)
        proxy.questions.clear()
        await proxy.cut()
        await until(lambda: not any(peer.connected for peer in server.peers), "the link to be lost")
        inbox.gate.set()
        await until(lambda: inbox.ended == [b"once"], "the handler to end")
        proxy.questions.set()
        await within(sending)
        assert inbox.begun == [b"once"]


@pytest.mark.asyncio
async def test_what_is_sent_again_is_finished_by_a_node_that_stops() -> None:
    """A resend of what is being handled is confirmed by the node that drains, and not done again by its successor."""
    inbox, successors = Inbox(hold=True), Inbox()
    server = make(inbox)
    await server.start()
    async with Proxy(server.address) as proxy, make() as client:
        sending = client.send(Message(b"once", proxy.address), retry=1, timeout=None)
        await inbox.holds(1)
        await proxy.cut()
        await until(lambda: client.stats().sent == 2, "the resend")
        await until(lambda: server.stats().connections == 1, "the new link")
        port = server.address.port
        stopping = asyncio.ensure_future(server.stop(drain=PATIENCE))
        await turns()
        async with make(successors, port=port):
            # What the goodbye handed back would come to it by now.
            await elapse(0.1)
            inbox.gate.set()
            await within(sending)
            await within(stopping)
    assert (inbox.begun, successors.begun) == ([b"once"], [])


@pytest.mark.asyncio
async def test_what_a_broken_link_brought_is_remembered_beyond_a_goodbye() -> None:
    """A later link that its node only gives up does not end what is remembered of one that broke."""
    inbox = Inbox()
    async with make(inbox, timeout=0.5) as server:
        async with raw_dialling(server, port=1) as link:
            message = link.message(b"once")
            link.send(message)
            assert (await within(link.read_frame())).kind == ACK
        await until(lambda: server.stats().connections == 0, "the link to break")
        async with raw_dialling(server, port=1) as link:
            link.send(Frame(bytes(16), 0, GOODBYE, data=b"\x02"))
            assert (await within(link.read_frame())).kind == GOODBYE
            await until(lambda: server.stats().connections == 0, "the link to be given up")
        async with raw_dialling(server, port=1) as link:
            link.send(replace(message, kind=message.kind | RETRY))
            assert (await within(link.read_frame())).kind == ACK
        assert inbox.begun == [b"once"]


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [True, False])
async def test_who_went_while_its_message_was_handled_is_forgotten_in_time(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Nothing is kept for ever of senders that went before their messages ended, whether or not they could come back."""
    monkeypatch.setattr("redpoll.node.peers.REMEMBERED_FOR", 0.05)
    inbox = Inbox(hold=True)
    async with make(inbox, reuse_time=0.05, timeout=0.01) as server:
        for number in range(10):
            async with raw_dialling(server, port=0, identity=bytes([number]) * 16) as link:
                link.send(link.message(b"x", kind=0 if plain else REQ_ACK))
                await inbox.holds(number + 1)
        await until(lambda: server.stats().connections == 0, "all links to be lost")
        assert len(server.peers) == 10
        inbox.gate.set()
        await until(lambda: not server.peers, "the peers to be forgotten")
        assert server.stats().received == 10


@pytest.mark.asyncio
async def test_who_went_before_anybody_took_its_message_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for ever of senders whose messages nobody took."""
    monkeypatch.setattr("redpoll.node.peers.REMEMBERED_FOR", 0.05)
    async with make(reuse_time=0.05, timeout=0.01, unclaimed_timeout=0.05) as server:
        for number in range(10):
            async with raw_dialling(server, port=0, identity=bytes([number]) * 16) as link:
                link.send(link.message(b"x"))
                await until(lambda: server.stats().received == number + 1, "the message")  # noqa: B023
        await until(lambda: not server.peers, "the peers to be forgotten")
        assert server.stats().refused == 10
