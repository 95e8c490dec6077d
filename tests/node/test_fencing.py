"""A node that is started again, and others that say to be it: who is known by a secret, and who is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import TLS, Message, Node, NotConfirmed, NotSent
from redpoll.errors import Fenced
from redpoll.testing.certificates import Certificates
from tests.interop.raw import Frame, RawLink, raw_listener
from tests.node.resuming import IDENTITY, OTHER, PATIENT, SECRET, Told, announcing, killed
from tests.node.support import Inbox, Proxy, make, raw_accepting, settle, to, turns, until, within
from tests.ports import free_port
from tests.wire.support import GOODBYE, REQ_ACK, SESSION

pytestmark = pytest.mark.asyncio

# Another run of the node


async def test_a_new_run_fails_what_was_in_flight_to_the_former() -> None:
    """When a listener was started again, what was in flight is not confirmed, and what was not begun goes to the new run."""
    inbox, after = Inbox(hold=True), Inbox()
    node = Told(resume=30.0, timeout=None)
    async with node:
        server = make(inbox, window=1, identity=IDENTITY)
        async with killed(server):
            port = server.address.port
            first = node.send(to(server, b"in flight"))
            second = node.send(to(server, b"not begun"))
            await inbox.holds(1)
        await until(lambda: any(peer.resuming for peer in node.peers), "the end of the link")
        async with Node(after, port=port, identity=IDENTITY):
            await within(second)
            with pytest.raises(NotConfirmed, match="restarted"):
                await within(first)
            assert after.begun == [b"not begun"]
            assert node.told == ["began", "renewed"]


async def test_a_client_that_was_killed_takes_its_place_again() -> None:
    """A client with its identity and secret is known again: replies to its former run fail, in order, new ones arrive."""
    server_inbox, client_inbox = Inbox(), Inbox()
    server = Told(server_inbox, port=0, resume=30.0, timeout=None)
    options: dict[str, Any] = {"listen": False, "identity": IDENTITY, "secret": SECRET, "resume": 30.0}
    failed: list[str] = []
    async with server:
        async with killed(Node(Inbox(hold=True), **options)) as first:
            await within(first.send(to(server, b"hello")))
            (hello,) = server_inbox.messages
            in_flight = [server.send(hello.reply(b"in flight")) for _ in range(2)]
            await until(lambda: server.stats().in_flight == 2, "them to be written")
        await until(lambda: any(peer.resuming for peer in server.peers), "the end of the link")
        waiting = server.send(hello.reply(b"for the former run"))
        for name, future in (("first", in_flight[0]), ("second", in_flight[1]), ("third", waiting)):
            future.add_done_callback(lambda _, name=name: failed.append(name))  # type: ignore[misc]
        async with Node(client_inbox, **options) as second:
            await within(second.send(to(server, b"hello again")))
            await settle(*in_flight, waiting)
            assert [type(each.exception()) for each in (*in_flight, waiting)] == [NotConfirmed, NotConfirmed, NotSent]
            assert failed == ["first", "second", "third"]
            assert "restarted" in str(waiting.exception())
            again = server_inbox.messages[1]
            await within(server.send(again.reply(b"welcome")))
            assert client_inbox.begun == [b"welcome"]
            assert server.told == ["began", "renewed"]
            assert server.stats().conflicts == 0


@pytest.mark.parametrize("resume", [None, 30.0])
async def test_an_older_self_is_fenced(resume: float | None) -> None:
    """A newer run with the secret takes over though the older one lives; that one is told, and does not come back."""
    inbox = Inbox()
    options: dict[str, Any] = {"listen": False, "identity": IDENTITY, "secret": SECRET, "resume": resume}
    older = Told(lambda _: None, **options)
    async with make(inbox, resume=resume) as server, older, make(**options) as newer:
        await within(older.send(to(server, b"older")))
        await within(newer.send(to(server, b"newer")))
        await until(lambda: older.told == ["began", "ended"], "the word")
        assert isinstance(older.errors[0], Fenced)
        with pytest.raises(NotSent) as caught:
            await within(older.send(to(server, b"older again")))
        assert isinstance(caught.value.__cause__, Fenced)
        with pytest.raises(Fenced, match="another run of this node"):
            await within(older.ready(server.address))
        await within(newer.send(to(server, b"newer again")))
        assert inbox.begun == [b"older", b"newer", b"newer again"]
        assert server.stats().connections == 1
        assert newer.stats().reconnects == 0


async def test_a_fenced_run_that_was_not_told_is_told_when_it_comes() -> None:
    """An older run whose link was lost before it could be told is not let in again: the newer one keeps its place."""
    inbox = Inbox()
    options: dict[str, Any] = {"listen": False, "identity": IDENTITY, "secret": SECRET, **PATIENT}
    older = Told(lambda _: None, **options)
    async with make(inbox) as server, Proxy(server.address) as proxy, older, make(**options) as newer:
        await within(older.send(Message(b"older", proxy.address)))
        proxy.answers.clear()
        await within(newer.send(to(server, b"newer")))
        await proxy.cut()
        await until(lambda: not older.stats().connections, "the end of the link")
        sending = older.send(Message(b"older again", proxy.address))
        proxy.answers.set()
        with pytest.raises(NotSent) as caught:
            await within(sending)
        assert isinstance(caught.value.__cause__, Fenced)
        await within(newer.send(to(server, b"newer again")))
        assert inbox.begun == [b"older", b"newer", b"newer again"]


async def test_a_fenced_run_that_does_not_close_is_closed() -> None:
    """Who is told that its run lost its place and stays is closed after a second; nothing of it is taken meanwhile."""
    inbox = Inbox()
    shown = Frame(bytes(16), 0, SESSION, data=b"\x04\x01\0\0\0\0" + SECRET)
    async with make(inbox) as server:
        links = []
        for epoch in (1, 2, 1):
            links.append(link := await RawLink.dial("127.0.0.1", server.address.port))
            link.write(b"\0\0" + IDENTITY + announcing(flags=0x03, epoch=epoch))
            await link.read(18 + 27)
            link.send(shown)
            link.send(link.message(bytes([epoch]), kind=REQ_ACK))
            if len(links) < 3:
                await inbox.holds(len(links))
        fenced, goodbye = await links[2].read_frame(), await links[2].read_frame()
        assert (fenced.kind, fenced.data) == (SESSION, b"\x05")
        assert (goodbye.kind, goodbye.data) == (GOODBYE, b"\x01")
        assert await links[2].read_all() == b""
        assert inbox.begun == [b"\1", b"\2"]
        for link in links:
            link.close()


@pytest.mark.parametrize("secret", [OTHER, None])
async def test_another_secret_is_another_peer(secret: bytes | None) -> None:
    """Who claims the identity with another secret, or none, is a peer of its own, and a conflict; the first one stays."""
    inbox = Inbox()
    first = make(listen=False, identity=IDENTITY, secret=SECRET)
    claimant = make(listen=False, identity=IDENTITY, secret=secret)
    async with make(inbox) as server, first, claimant:
        await within(first.send(to(server, b"first")))
        await within(claimant.send(to(server, b"claimant")))
        await within(first.send(to(server, b"first again")))
        assert inbox.begun == [b"first", b"claimant", b"first again"]
        assert server.stats().conflicts == 1
        assert first.stats().reconnects == 0
        one, other, again = (message.link.peer for message in inbox.messages)
        assert one is again
        assert one is not other


@pytest.mark.parametrize("secret", [OTHER, None])
async def test_what_waits_for_one_is_not_for_a_claimant(secret: bytes | None) -> None:
    """While a session goes on without a link, who comes with another secret gets nothing of what waits."""
    inbox, stolen, own = Inbox(), Inbox(), Inbox()
    options: dict[str, Any] = {"listen": False, "identity": IDENTITY, "resume": 30.0, "secret": SECRET}
    async with make(inbox, **PATIENT) as server:
        async with killed(Node(own, **options)) as first:
            await within(first.send(to(server, b"hello")))
        await until(lambda: any(peer.resuming for peer in server.peers), "the end of the link")
        waiting = server.send(inbox.messages[0].reply(b"for the first alone"))
        async with Node(stolen, listen=False, identity=IDENTITY, secret=secret) as claimant:
            await within(claimant.send(to(server, b"mine")))
            await turns()
            assert not waiting.done()
        assert stolen.begun == []
        waiting.cancel()


async def test_nobody_is_shown_the_secret_itself() -> None:
    """Each node is shown a secret of its own, the same each time: what one was shown proves nothing to another."""
    async with make(secret=SECRET, listen=False) as node, raw_listener() as one, raw_listener() as other:
        shown = []
        for listener, identity in ((one, b"A" * 16), (other, b"B" * 16), (one, b"A" * 16)):
            message = Message(b"x", f"127.0.0.1:{listener.port}")
            sending = node.send(message, timeout=None)
            async with raw_accepting(listener, identity=identity) as link:
                frame = await link.read_frame()
                assert frame.kind == SESSION
                assert (frame.data[:2], len(frame.data)) == (b"\x04\x01", 22)
                shown.append(frame.data[6:])
                sending.cancel()
        assert shown[0] == shown[2] != shown[1]
        assert SECRET not in shown
        assert SECRET.hex() not in repr(node.config)
        assert repr(SECRET) not in repr(node.config)


async def test_without_resume_no_byte_differs() -> None:
    """A node with neither `resume` nor `secret` says nothing of sessions, and libchirp hears nothing of them of any."""
    async with (
        make(listen=False, timeout=None) as node,
        make(listen=False, **PATIENT) as patient,
        raw_listener() as listener,
    ):
        message = Message(b"x", f"127.0.0.1:{listener.port}")
        node.send(message)
        async with raw_accepting(listener) as link:
            assert (await link.read_frame()).kind & ~0x40 == REQ_ACK
        patient.send(message)
        async with raw_accepting(listener, redpoll=False) as link:
            assert (await link.read_frame()).kind == REQ_ACK


@pytest.mark.parametrize("shows", ["another", "none"])
async def test_a_secret_does_not_outweigh_a_certificate(redpoll_pki: Certificates, shows: str) -> None:
    """Who has the secret, and another key or none, does not take the place of who showed a certificate."""
    tls = TLS(certificate=redpoll_pki.issue("server"), client_certificate="optional")
    own = TLS(certificate=redpoll_pki.issue("own"))
    other = (
        TLS(certificate=redpoll_pki.issue("other"))
        if shows == "another"
        else TLS(ca=own.certificate, check_names=False)
    )
    options: dict[str, Any] = {"listen": False, "identity": IDENTITY, "secret": SECRET, "encryption": True}
    inbox = Inbox()
    async with (
        make(inbox, tls=tls, encryption=True) as server,
        make(tls=own, **options) as true,
        make(tls=other, **options) as false,
    ):
        await within(true.send(to(server, b"true")))
        await within(false.send(to(server, b"false")))
        await within(true.send(to(server, b"true again")))
        one, stranger, again = (message.link.peer for message in inbox.messages)
        assert one is again
        assert one is not stranger
        assert server.stats().conflicts == 1
        assert true.stats().reconnects == 0


async def test_a_certificate_outweighs_a_secret(redpoll_pki: Certificates) -> None:
    """Who shows the key of the peer, at its place, is the peer, though its secret is new; that is its own from then on."""
    tls = TLS(certificate=redpoll_pki.issue("own"))
    options: dict[str, Any] = {"port": free_port(), "identity": IDENTITY, "encryption": True, "tls": tls}
    inbox = Inbox()
    async with make(inbox, tls=tls, encryption=True, resume=30.0) as server:
        async with killed(Node(**options, secret=SECRET)) as first:
            await within(first.send(to(server, b"first")))
        await until(lambda: any(peer.resuming for peer in server.peers), "the end of the link")
        async with make(**options, secret=OTHER) as second:
            await within(second.send(to(server, b"second")))
            one, other = (message.link.peer for message in inbox.messages)
            assert one is other
            assert server.stats().conflicts == 0
            options |= {"port": None, "listen": False}
            async with make(**options, secret=OTHER) as third:
                await within(third.send(to(server, b"third")))
                assert inbox.messages[2].link.peer is one
                assert server.stats().connections == 1
