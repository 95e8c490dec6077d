"""Who gets in as whom: what a certificate proves, and what a stranger gets who claims a known identity. With real TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redpoll import TLS, Message, Node, NotSent, PeerLost
from redpoll.node.hooks import PeerInfo
from redpoll.pki import CA, Chain
from redpoll.testing.certificates import Certificates
from tests.interop.raw import ACK, REQ_ACK, Frame
from tests.node.secure_link import IDENTITY, SecureLink, secure_dialling
from tests.node.support import Inbox, make, to, turns, until, within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

RETRY, WANTED, PING, PONG, GOODBYE, SESSION = 0x08, 0x10, 0x0C, 0x14, 0x1C, 0x3C
BLANK = bytes(16)


@pytest.fixture
def own(redpoll_pki: Certificates) -> Path:
    """The certificate of the node that has the identity."""
    return redpoll_pki.issue("owner")


@pytest.fixture
def other(redpoll_pki: Certificates) -> Path:
    """A certificate of the same CA, and another key."""
    return redpoll_pki.issue("stranger")


class Told:
    """What a node's hooks were called with, in order."""

    def __init__(self, node: Node[Any]) -> None:
        self.names: list[str] = []
        self.peers: list[PeerInfo] = []
        for name in ("peer_connected", "peer_lost", "identity_conflict"):
            node.events.add(name, lambda peer, *_, name=name: self._tell(name.rpartition("_")[2], peer))

    def _tell(self, name: str, peer: PeerInfo) -> None:
        self.names.append(name)
        self.peers.append(peer)


@contextlib.asynccontextmanager
async def serving(pki: Certificates, handler: Any, **options: Any) -> AsyncIterator[tuple[Node[Any], Told]]:
    """A node that encrypts on loopback too, and what it tells."""
    tls = TLS(certificate=pki.issue("server"), client_certificate=options.pop("client_certificate", "required"))
    async with make(handler, encryption=True, tls=tls, **options) as node:
        yield node, Told(node)


async def lost(node: Node[Any], link: SecureLink) -> None:
    """Cut a link and wait until the node knows."""
    before = node.stats().connections
    await link.cut()
    await until(lambda: node.stats().connections < before, "the end of the link")


async def asked(link: SecureLink, *, alive: bool = True) -> bytes:
    """Read the question for a proof, answer the ping behind it if `alive`; return the number."""
    question, ping = await link.read_frame(), await link.read_frame()
    assert (question.kind, question.data[:1], ping.kind) == (SESSION, b"\x01", PING)
    if alive:
        link.send(Frame(BLANK, ping.serial, PONG))
    return question.data[1:]


async def frames(link: SecureLink) -> list[int]:
    """The kinds of all that the node had written to a link."""
    link.send(Frame(BLANK, 4711, PING))
    found = []
    while (frame := await link.read_frame()).serial != 4711:
        found.append(frame.kind)
    return found


async def confirmed(link: SecureLink, frame: Frame) -> None:
    """Read the acknowledgement of a message."""
    answer = await link.read_frame()
    assert (answer.kind & ACK, answer.serial) == (ACK, frame.serial)


# The same certificate


@pytest.mark.usefixtures("late")
async def test_the_same_certificate_is_the_proof(redpoll_pki: Certificates, own: Path) -> None:
    """A second link that shows the certificate of the first is the same peer at once; the older link is left."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, told), secure_dialling(node, own) as first:
        await until(lambda: told.names, "the first")
        async with secure_dialling(node, own) as second:
            await confirmed(second, second.message(b"x"))
            assert (await first.read_frame()).kind == GOODBYE
            await turns()
            assert told.names == ["connected"]
            assert (len(node.peers), node.stats().conflicts) == (1, 0)
        assert told.peers[0].certificate is not None
        assert told.peers[0].certificate.name == "owner"


@pytest.mark.usefixtures("late")
async def test_the_same_run_elsewhere(redpoll_pki: Certificates, own: Path) -> None:
    """A node that comes from another port, or host, in the same run and with its certificate, is the same peer."""
    async with serving(redpoll_pki, Inbox()) as (node, _), secure_dialling(node, own, port=4001) as first:
        await confirmed(first, first.message(b"x"))
        async with secure_dialling(node, own, port=4002) as second:
            await confirmed(second, second.message(b"x"))
            assert (len(node.peers), node.stats().conflicts) == (1, 0)
        async with secure_dialling(node, own, port=4003, epoch=78) as third:
            await confirmed(third, third.message(b"x"))
            assert (len(node.peers), node.stats().conflicts) == (2, 1)


@pytest.mark.parametrize("renewed", [False, True])
async def test_what_is_kept_is_kept_for_the_key(redpoll_pki: Certificates, renewed: bool, tmp_path: Path) -> None:
    """Who is back with its key, in a renewed certificate too, is answered again for what it sent before."""
    authority = CA.load(redpoll_pki.folder)
    chain = authority.issue("owner")
    again = authority.renew(chain) if renewed else chain
    old, new = chain.save(tmp_path / "old.pem"), Chain.save(again, tmp_path / "new.pem")
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, _):
        async with secure_dialling(node, old) as first:
            message = first.message(b"once")
            await confirmed(first, message)
            await lost(node, first)
        async with secure_dialling(node, new) as second:
            second.send(Frame(message.identity, message.serial, REQ_ACK | RETRY, b"", b"once"))
            await confirmed(second, message)
        assert inbox.begun == [b"once"]
        assert node.stats().conflicts == 0


# Another certificate, or none


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("shows", ["another", "none"])
async def test_a_stranger_and_a_live_holder(redpoll_pki: Certificates, own: Path, other: Path, shows: str) -> None:
    """Who claims a live peer's identity and place with another certificate, or none, is a peer of its own: a conflict."""
    inbox = Inbox()
    certificate = other if shows == "another" else None
    async with (
        serving(redpoll_pki, inbox, client_certificate="optional") as (node, told),
        secure_dialling(node, own) as true,
    ):
        await confirmed(true, true.message(b"first"))
        async with secure_dialling(node, certificate) as false:
            if shows == "another":
                await asked(true)
            await confirmed(false, false.message(b"from the stranger"))
            await turns()
            assert told.names == ["connected", "conflict", "connected"]
            assert (len(node.peers), node.stats().conflicts) == (2, 1)
            conflict = told.peers[1].certificate
            assert (conflict.name if conflict is not None else None) == ("stranger" if certificate else None)
            sending = node.send(Message(b"for the true one", f"127.0.0.1:{0x4000}"))
            frame = await true.read_frame()
            assert frame.data[-16:] == b"for the true one"
            true.send(Frame(frame.identity, frame.serial, ACK))
            await within(sending)
            assert await frames(false) == []
            sending = node.send(inbox.messages[0].reply(b"an answer"))
            frame = await true.read_frame()
            true.send(Frame(frame.identity, frame.serial, ACK))
            await within(sending)
            assert await frames(false) == []


@pytest.mark.parametrize("shows", ["another", "none"])
async def test_a_stranger_and_remembered_outcomes(
    redpoll_pki: Certificates, own: Path, other: Path, shows: str
) -> None:
    """The old link being gone gives a stranger nothing: no outcome of what its owner sent, which is still there for that."""
    inbox = Inbox()
    certificate = other if shows == "another" else None
    async with serving(redpoll_pki, inbox, client_certificate="optional") as (node, told):
        async with secure_dialling(node, own) as true:
            message = true.message(b"secret")
            await confirmed(true, message)
            await lost(node, true)
        again = Frame(message.identity, message.serial, REQ_ACK | RETRY, b"", b"other work")
        async with secure_dialling(node, certificate) as false:
            false.send(again)
            await confirmed(false, message)
            assert inbox.begun == [b"secret", b"other work"], "it is new to who is new"
            await turns()
            assert told.names[-2:] == ["conflict", "connected"]
            assert node.stats().conflicts == 1
            async with secure_dialling(node, own) as back:
                back.send(again)
                await confirmed(back, message)
                assert inbox.begun == [b"secret", b"other work"]
                assert await frames(false) == []


async def test_a_stranger_and_work_that_goes_on(redpoll_pki: Certificates, own: Path, other: Path) -> None:
    """What is handled for a peer that is gone is answered to it when it is back, and not to a stranger."""
    inbox = Inbox(hold=True, answer=b"the result")
    async with serving(redpoll_pki, inbox) as (node, _):
        async with secure_dialling(node, own) as true:
            message = true.message(b"work", kind=REQ_ACK | WANTED)
            await inbox.holds(1)
            await lost(node, true)
        async with secure_dialling(node, other) as false, secure_dialling(node, own) as back:
            await until(lambda: node.stats().conflicts, "the stranger")
            await until(lambda: node.stats().reconnects, "the owner")
            inbox.gate.set()
            back.send(Frame(message.identity, message.serial, REQ_ACK | RETRY | WANTED, b"", b"work"))
            while (frame := await back.read_frame()).data != b"the result":
                assert frame.kind != ACK
            assert ACK not in [kind & ACK for kind in await frames(false)]
        assert inbox.begun == [b"work"]


async def test_resends_are_for_the_owner(redpoll_pki: Certificates, own: Path, other: Path) -> None:
    """A message that was in flight when its link was lost is sent again to who shows the same certificate, to nobody else."""
    port = free_port()
    async with serving(redpoll_pki, Inbox()) as (node, told):
        async with secure_dialling(node, own, port=port) as true:
            await until(lambda: told.names, "the owner")
            sending = node.send(Message(b"for you alone", f"127.0.0.1:{port}"), retry=1, timeout=None)
            first = await true.read_frame()
            await lost(node, true)
            queued = node.send(Message(b"and this", f"127.0.0.1:{port}"), timeout=None)
        async with secure_dialling(node, other, port=port) as false:
            await confirmed(false, false.message(b"x"))
            assert await frames(false) == []
            await turns()
            assert told.names == ["connected", "lost", "conflict", "connected"]
            async with secure_dialling(node, own, port=port) as owner:
                frame = await owner.read_frame()
                assert (frame.serial, frame.kind & RETRY, frame.data) == (first.serial, RETRY, first.data)
                owner.send(Frame(frame.identity, frame.serial, ACK))
                frame = await owner.read_frame()
                owner.send(Frame(frame.identity, frame.serial, ACK))
                await within(asyncio.gather(sending, queued))
            assert await frames(false) == []


async def test_nothing_is_kept(redpoll_pki: Certificates, own: Path, other: Path) -> None:
    """An identity that nothing is kept for is anybody's: no conflict; but what its owner sent is not answered to them."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, told):
        async with secure_dialling(node, own) as true:
            true.message(b"x", kind=0)
            await inbox.holds(1)
            await lost(node, true)
        await until(lambda: not node.peers, "the peer to be forgotten")
        async with secure_dialling(node, other) as next_one:
            await confirmed(next_one, next_one.message(b"y"))
            await turns()
            assert told.names == ["connected", "lost", "connected"]
            with pytest.raises(NotSent) as caught:
                await within(node.send(inbox.messages[0].reply(b"to the first"), timeout=1, dial="once"))
            assert isinstance(caught.value.__cause__, PeerLost)
            assert await frames(next_one) == []


@pytest.mark.usefixtures("late")
async def test_a_new_key_is_proven_by_who_has_the_link(redpoll_pki: Certificates, own: Path, other: Path) -> None:
    """A node that was given a new key proves with its old link that it is the same one."""
    async with serving(redpoll_pki, Inbox()) as (node, told), secure_dialling(node, own) as first:
        await until(lambda: told.names, "the first")
        async with secure_dialling(node, other) as second:
            number = await asked(first)
            frame = second.message(b"x")
            assert await frames(second) == []
            second.send(Frame(BLANK, 0, SESSION, data=b"\x02" + number))
            await confirmed(second, frame)
            (peer,) = node.peers
            assert peer.certificate is not None
            assert peer.certificate.name == "stranger", "the newest"
            await turns()
            assert told.names == ["connected"]


@pytest.mark.usefixtures("late")
async def test_a_claim_does_not_outlive_its_holder_with_another_key(
    redpoll_pki: Certificates, own: Path, other: Path
) -> None:
    """A holder that is gone while a claim is open leaves nothing to a link with another certificate."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, told), secure_dialling(node, own) as first:
        message = first.message(b"once")
        await confirmed(first, message)
        async with secure_dialling(node, other) as second:
            await asked(first)
            second.send(Frame(message.identity, message.serial, REQ_ACK | RETRY, b"", b"other work"))
            await lost(node, first)
            await confirmed(second, message)
            assert inbox.begun == [b"once", b"other work"]
            assert node.stats().conflicts == 1
            await turns()
            assert told.names == ["connected", "lost", "conflict", "connected"]


# A new run


@pytest.mark.usefixtures("soon")
async def test_a_new_run_of_a_node_that_is_gone(redpoll_pki: Certificates, own: Path) -> None:
    """A node that was started anew takes its identity over when its old link, of which nobody told the end, is silent."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, told), secure_dialling(node, own, epoch=1) as dead:
        await confirmed(dead, dead.message(b"before"))
        async with secure_dialling(node, own, epoch=2) as new:
            await confirmed(new, new.message(b"after"))
            await turns()
            assert told.names == ["connected", "lost", "connected"]
            assert (len(node.peers), node.stats().connections, node.stats().conflicts) == (1, 1, 0)
            sending = node.send(Message(b"to who is there", f"127.0.0.1:{0x4000}"))
            frame = await new.read_frame()
            new.send(Frame(frame.identity, frame.serial, ACK))
            await within(sending)


@pytest.mark.usefixtures("soon")
async def test_two_that_live_share_identity_and_certificate(redpoll_pki: Certificates, own: Path) -> None:
    """Two nodes that live, with one identity and one certificate, are two peers: a conflict, and no link is closed."""
    async with serving(redpoll_pki, Inbox()) as (node, told), secure_dialling(node, own, epoch=1) as one:
        await confirmed(one, one.message(b"x"))
        async with secure_dialling(node, own, epoch=2) as two:
            await asked(one)
            await confirmed(two, two.message(b"x"))
            await turns()
            assert told.names == ["connected", "conflict", "connected"]
            await confirmed(one, one.message(b"x"))


# libchirp


@pytest.mark.parametrize("same", [True, False])
async def test_libchirp(redpoll_pki: Certificates, own: Path, other: Path, same: bool) -> None:
    """Two links of a libchirp node are one peer if they show one certificate; with another one it is a stranger's."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, _), secure_dialling(node, own, epoch=None) as one:
        one.message(b"x")
        await inbox.holds(1)
        async with secure_dialling(node, own if same else other, epoch=None) as two:
            two.message(b"y")
            await inbox.holds(2)
            assert len(node.peers) == (1 if same else 2)
            assert node.stats().conflicts == (0 if same else 1)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("early", [True, False])
async def test_what_comes_before_it_is_known_whose_it_is(redpoll_pki: Certificates, own: Path, early: bool) -> None:
    """What libchirp sends over a link that may be its other one waits, one read of it; without the other it is handled."""
    inbox = Inbox()
    async with serving(redpoll_pki, inbox) as (node, _), secure_dialling(node, own) as holder:
        await confirmed(holder, holder.message(b"x"))
        known = set(node._peers.connections)
        async with secure_dialling(node, own, epoch=None) as claiming:
            if not early:
                await until(lambda: node._peers.admission.claims.open, "the claim")
            for _ in range(40):
                claiming.message(bytes(60_000), kind=0)
            await until(lambda: node._peers.admission.claims.open, "the claim")
            await turns(100)
            (connection,) = set(node._peers.connections) - known
            assert connection.link.bytes_received < 1_000_000
            await lost(node, holder)
            await inbox.holds(41)


# Two nodes


async def test_dialled_and_another_certificate_is_there(redpoll_pki: Certificates, own: Path, other: Path) -> None:
    """Who is dialled at a peer's address and shows another certificate gets what goes to the address, and no answers."""
    port = free_port()
    first, second, back = Inbox(), Inbox(), Inbox()
    true = make(first, encryption=True, tls=TLS(certificate=own), identity=IDENTITY, port=port)
    await true.start()
    async with serving(redpoll_pki, back, reuse_time=600) as (node, told):
        await within(true.send(to(node, b"a question")))
        await within(node.send(to(true)))
        for connection in list(true._peers.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await within(true.stop(0))
        async with make(second, encryption=True, tls=TLS(certificate=other), identity=IDENTITY, port=port):
            answer = node.send(back.messages[0].reply(b"an answer"))
            await within(node.send(Message(b"for the address", f"127.0.0.1:{port}")))
            with pytest.raises(NotSent) as caught:
                await within(answer)
            assert isinstance(caught.value.__cause__, PeerLost)
            assert second.begun == [b"for the address"]
            assert "conflict" in told.names


async def test_waiting_for_an_address_of_two(redpoll_pki: Certificates) -> None:
    """What waits for a name goes out at once over the link that the same node made meanwhile."""
    one, two = Inbox(), Inbox()
    tls = TLS(certificate=redpoll_pki.issue(), check_names=True)
    options: dict[str, Any] = {"encryption": True, "tls": tls}
    async with make(one, identity=b"b" * 16, **options) as first, make(two, identity=b"a" * 16, **options) as second:
        for _ in range(5):
            await within(asyncio.gather(first.send(to(second)), second.send(to(first))))
        assert (len(one.begun), len(two.begun)) == (5, 5)
