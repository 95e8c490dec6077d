"""Links that claim the identity of a live peer: proof, strangers, and two nodes that dial each other at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redpoll import Address, Message, Node
from redpoll.node import admission as admission_module
from redpoll.node import claims as claims_module
from redpoll.node.claims import DOUBT_TIMEOUT, Claims
from redpoll.node.hooks import PeerInfo
from redpoll.node.peers import Peers
from redpoll.tls.certificate import Certificate
from redpoll.tls.credentials import TLSSession
from redpoll.transport.connection import Connection, Keeper
from redpoll.wire.link import Link
from redpoll.wire.peer import Peer
from tests.interop.raw import Frame, RawLink, raw_listener
from tests.node.support import Inbox, make, raw_accepting, raw_dialling, to, turns, until, within
from tests.wire.support import (
    ACK,
    ANSWER,
    GOODBYE,
    PING,
    PONG,
    REQ_ACK,
    SESSION,
    THEIRS,
    THERE,
    WANTED,
    add_link,
    announcement,
    bare_link,
    feed,
    handshake,
    make_peer,
    sent,
)

PROVE, PROOF = b"\x01", b"\x02"
NUMBER = bytes(range(0x30, 0x40))
IDENTITY = b"I" * 16
BLANK = bytes(16)

# The unit. A connection here has its link and no transport.


def connection(link: Link[Peer], remote: Address = THERE) -> Connection:
    """A connection that nobody keeps."""
    return Connection(cast("Keeper", SimpleNamespace(spin=None)), link, remote, asyncio.get_running_loop())


def stranger(identity: bytes = THEIRS, *, dialled: bool = False, remote: Address = THERE) -> Connection:
    """A connection whose other end said who it is, and that has no peer."""
    link = bare_link(dialled=dialled)
    link.start(None)
    link.take_output()
    feed(link, handshake(identity=identity) + announcement())
    return connection(link, remote)


def trusted(peer: Peer, *, dialled: bool = False) -> Connection:
    """A connection whose link is a peer's."""
    return connection(add_link(peer, dialled=dialled))


def sessions(line: Connection) -> list[bytes]:
    """The bodies of the session frames that were written to a connection since it was last looked at."""
    return [body for kind, _, _, _, body in sent(line.link) if kind == SESSION]


@pytest.mark.asyncio
async def test_ask_writes_to_the_trusted_link_alone() -> None:
    """A claim sends a number, and a ping, over the peer's own link and nothing over the one that claims."""
    claims, peer = Claims(), make_peer()
    line, claiming = trusted(peer), stranger()
    claim = claims.ask(claiming, peer, 0.0)
    assert len(claim.number) == 16
    assert [(kind, body) for kind, _, _, _, body in sent(line.link)] == [(SESSION, PROVE + claim.number), (PING, b"")]
    assert not claiming.link.output
    assert claims.get(claiming) is claim
    assert claims.get(line) is None
    assert claims.of_peer(peer) == claims.open == [claim]


@pytest.mark.asyncio
async def test_numbers_are_not_used_twice() -> None:
    """Each claim has a number of its own."""
    claims, peer = Claims(), make_peer()
    trusted(peer)
    assert len({claims.ask(stranger(), peer, 0.0).number for _ in range(20)}) == 20


@pytest.mark.asyncio
async def test_a_claim_is_proven_once() -> None:
    """The number, returned over the connection that claims, proves the claim; dropped, it proves nothing any more."""
    claims, peer = Claims(), make_peer()
    trusted(peer)
    claiming = stranger()
    claim = claims.ask(claiming, peer, 0.0)
    assert claims.take(claiming, PROOF + claim.number) is claim
    assert (claim.connection, claim.peer) == (claiming, peer)
    assert claims.drop(claim)
    assert not claims.drop(claim)
    assert claims.take(claiming, PROOF + claim.number) is None
    assert claims.get(claiming) is None
    assert claims.of_peer(peer) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["trusted", "other claim", "not claiming"])
async def test_a_proof_counts_where_it_is_due(where: str) -> None:
    """The right number over any other connection proves nothing, and the claim stays open."""
    claims, peer = Claims(), make_peer()
    line, claiming, other = trusted(peer), stranger(), stranger()
    claim = claims.ask(claiming, peer, 0.0)
    claims.ask(other, peer, 0.0)
    wrong = {"trusted": line, "other claim": other, "not claiming": stranger()}[where]
    assert claims.take(wrong, PROOF + claim.number) is None
    assert claims.take(claiming, PROOF + claim.number) is claim


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 1, 15, 17, 64])
async def test_numbers_of_another_size_are_ignored(size: int) -> None:
    """A session frame whose number has not 16 bytes is neither a proof nor answered with one."""
    claims, peer = Claims(), make_peer()
    line, own = trusted(peer), stranger(dialled=True)
    claiming = stranger()
    claims.opened(own)
    claim = claims.ask(claiming, peer, 0.0)
    wrong = (claim.number * 4)[:size]
    assert claims.take(claiming, PROOF + wrong) is None
    assert claims.take(line, PROVE + wrong) is None
    assert sessions(own) == []
    assert claims.take(claiming, PROOF + claim.number) is claim


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"", b"\x00" + NUMBER, b"\x03" + NUMBER, NUMBER])
async def test_other_bodies_are_ignored(body: bytes) -> None:
    """A session frame of an unknown kind does nothing."""
    claims, own = Claims(), stranger(dialled=True)
    claims.opened(own)
    assert claims.take(trusted(make_peer()), body) is None
    assert sessions(own) == []


@pytest.mark.asyncio
async def test_a_number_is_returned_over_links_that_were_dialled() -> None:
    """Asked to prove, a node returns the number over what it dialled to that node: not where it came, not elsewhere."""
    claims = Claims()
    asking = trusted(make_peer(), dialled=True)
    own, elsewhere = stranger(dialled=True), stranger(b"another node, 16", dialled=True)
    for each in (asking, elsewhere, own):
        claims.opened(each)
    claims.bound(asking)
    assert claims.take(asking, PROVE + NUMBER) is None
    assert sessions(own) == [PROOF + NUMBER]
    assert own.scheduled
    assert sessions(elsewhere) == []
    assert sessions(asking) == []


@pytest.mark.asyncio
async def test_a_proof_waits_for_the_announcement() -> None:
    """A number that is asked for before the dialled link is up is returned once, when it is."""
    claims = Claims()
    asking = trusted(make_peer())
    other_host = Address("tcp", "127.0.0.9", THERE.port)
    own, elsewhere = connection(bare_link()), connection(bare_link(), other_host)
    own.link.start(None)
    own.link.take_output()
    claims.opened(own)
    claims.opened(elsewhere)
    assert claims.take(asking, PROVE + NUMBER) is None
    assert not own.link.output
    feed(own.link, handshake() + announcement())
    feed(elsewhere.link, handshake(identity=b"another node, 16") + announcement())
    for each in (own, own, elsewhere):
        claims.settle(each)
    assert sessions(own) == [PROOF + NUMBER]
    assert sessions(elsewhere) == []


def shows(line: Connection, key: str) -> Connection:
    """Let the other end of a connection have shown a certificate."""
    moment = datetime.now(UTC)
    shown = Certificate("CN=x", "x", (), "CN=CA", "1", moment, moment, f"sha256:{key}", f"sha256:{key}")
    line.secured = cast("TLSSession", SimpleNamespace(certificate=shown))
    return line


@pytest.mark.asyncio
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("asking", "dialled", "returned"),
    [("a", "a", True), ("a", "b", False), ("a", None, False), (None, "b", False), (None, None, True)],
)
async def test_a_number_goes_to_who_asked_alone(
    asking: str | None, dialled: str | None, returned: bool, early: bool
) -> None:
    """A number is not returned to who shows another certificate than who asked: it could pass it on as its own."""
    claims = Claims()
    line = trusted(make_peer())
    own = connection(bare_link())
    own.link.start(None)
    own.link.take_output()
    if not early:
        feed(own.link, handshake() + announcement())
    for each, key in ((line, asking), (own, dialled)):
        if key is not None:
            shows(each, key)
    claims.opened(own)
    assert claims.take(line, PROVE + NUMBER) is None
    if early:
        feed(own.link, handshake() + announcement())
        claims.settle(own)
    assert sessions(own) == ([PROOF + NUMBER] if returned else [])


@pytest.mark.asyncio
async def test_a_lost_connection_is_forgotten() -> None:
    """Of a connection that is gone neither its claim nor the proof that it is owed is left."""
    claims, peer = Claims(), make_peer()
    asking, claiming, own = trusted(peer), stranger(), connection(bare_link())
    claims.opened(own)
    claim = claims.ask(claiming, peer, 0.0)
    claims.take(asking, PROVE + NUMBER)
    claims.forget(claiming)
    claims.forget(own)
    assert not claims.drop(claim)
    feed(own.link, handshake() + announcement())
    claims.settle(own)
    assert sessions(own) == []


@pytest.mark.asyncio
async def test_who_is_heard_after_it_was_asked_lives() -> None:
    """A holder lives if anything came over a link of its own after it was asked; a link that is silent is in doubt."""
    claims, peer = Claims(), make_peer()
    line = trusted(peer)
    claim = claims.ask(stranger(), peer, 0.0)
    assert not claim.holder_lives
    feed(line.link, Frame(BLANK, 1, PONG).encode())
    assert claim.holder_lives


@pytest.mark.asyncio
async def test_who_does_not_answer_leaves_doubt() -> None:
    """A claim is open until the ping is answered or the doubt lasts too long; bytes that were under way decide nothing."""
    claims, peer = Claims(), make_peer()
    line = trusted(peer)
    claim = claims.ask(stranger(), peer, 100.0)
    assert claim.in_doubt(101.0)
    feed(line.link, Frame(BLANK, 0, PONG).encode())
    assert claim.in_doubt(101.0)
    assert not claim.in_doubt(100.0 + DOUBT_TIMEOUT)
    feed(line.link, Frame(BLANK, claim.ping, PONG).encode())
    assert not claim.in_doubt(101.0)


# From end to end: sockets that play redpoll nodes.


def session(body: bytes) -> Frame:
    return Frame(BLANK, 0, SESSION, data=body)


class Told:
    """What a node's hooks were called with, in order."""

    def __init__(self, node: Node[Any]) -> None:
        self.calls: list[tuple[str, PeerInfo]] = []
        node.events.peer_connected = lambda peer: self.calls.append(("connected", peer))
        node.events.peer_lost = lambda peer, _: self.calls.append(("lost", peer))
        node.events.identity_conflict = lambda peer: self.calls.append(("conflict", peer))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@contextlib.asynccontextmanager
async def held(node: Node[Any], port: int) -> AsyncIterator[RawLink]:
    """The true peer's link: the first that claims `IDENTITY`."""
    async with raw_dialling(node, port=port, identity=IDENTITY) as link:
        await until(lambda: any(peer.connected for peer in node.peers), "the true peer")
        yield link


async def asked(link: RawLink, *, alive: bool = True) -> bytes:
    """Read the question for a proof, answer the ping behind it if `alive`; return the number."""
    question, ping = await within(link.read_frame()), await within(link.read_frame())
    assert (question.kind, question.data[:1], len(question.data)) == (SESSION, PROVE, 17)
    assert ping.kind == PING
    if alive:
        link.send(Frame(BLANK, ping.serial, PONG))
    return question.data[1:]


async def frames_until_pong(link: RawLink) -> list[Frame]:
    """Everything that the node had written to a link."""
    link.send(Frame(BLANK, 4711, PING))
    found = []
    while (frame := await within(link.read_frame())).kind != PONG:
        found.append(frame)
    return found


@pytest.mark.asyncio
async def test_a_stranger_becomes_a_peer_of_its_own() -> None:
    """Who claims a live peer's identity and address without proof is another peer, and gets nothing of the first's."""
    inbox = Inbox(answer=b"to you")
    async with make(inbox) as node, raw_listener() as listener:
        told = Told(node)
        address = Address("tcp", "127.0.0.1", listener.port)
        async with (
            held(node, listener.port) as true,
            raw_dialling(node, port=listener.port, identity=IDENTITY) as false,
        ):
            await asked(true)
            begin = asyncio.get_running_loop().time()
            false.send(session(PROOF + os.urandom(16)))
            false.send(session(PROOF))
            question = false.message(b"from the stranger", kind=REQ_ACK | WANTED)
            false.send(question)
            await within(node.send(Message(b"early", address), acknowledge=False))
            assert (await within(true.read_frame())).data == b"early"
            await turns()
            assert told.names == ["connected"]

            await until(lambda: "conflict" in told.names, "the conflict")
            assert asyncio.get_running_loop().time() - begin > 0.9
            await inbox.holds(1)
            await turns()
            assert told.names == ["connected", "conflict", "connected"]
            assert told.calls[1][1] == (address, IDENTITY, False, False, None, False)
            assert node.stats().conflicts == 1
            assert [(peer.address, peer.identity) for peer in node.peers] == [(address, IDENTITY)] * 2

            sending = node.send(Message(b"for the true one", address))
            message = await within(true.read_frame())
            assert (message.kind & REQ_ACK, message.data[-16:]) == (REQ_ACK, b"for the true one")
            true.send(Frame(message.identity, message.serial, ACK))
            await within(sending)
            seen = await frames_until_pong(false)
            assert [(frame.kind, frame.serial, frame.data) for frame in seen] == [
                (ACK | ANSWER, question.serial, b"to you")
            ]

            stats = node.stats()
            assert (stats.sent, stats.received, len(stats.peers)) == (2, 1, 2)


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
async def test_a_proven_link_is_the_same_peer() -> None:
    """A second link that returns the number is the peer's: what came over it is handled, and the older one is left."""
    inbox = Inbox()
    async with make(inbox) as node, raw_listener() as listener:
        told = Told(node)
        async with (
            held(node, listener.port) as first,
            raw_dialling(node, port=listener.port, identity=IDENTITY) as second,
        ):
            number = await asked(first)
            second.send(second.message(b"ahead"))
            assert await frames_until_pong(second) == []
            assert inbox.begun == []
            second.send(session(PROOF + number))
            assert (await within(second.read_frame())).kind == ACK
            assert inbox.begun == [b"ahead"]
            assert (await within(first.read_frame())).kind == GOODBYE
            assert len(node.peers) == 1
            await turns()
            assert told.names == ["connected"]
            assert node.stats().conflicts == 0


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
async def test_a_batch_over_two_links_ends_on_both() -> None:
    """Messages of one batch that came over two links of a peer are acknowledged over both, at once."""
    async with make(slots=2, keepalive=None) as node, raw_listener() as listener:
        async with (
            held(node, listener.port) as first,
            raw_dialling(node, port=listener.port, identity=IDENTITY) as second,
        ):
            number = await asked(first)
            second.send(session(PROOF + number))
            assert (await within(first.read_frame())).kind == GOODBYE
            second.send(second.message(b"over the newer"))
            await until(lambda: node.stats().received == 1, "what came over the newer link")
            first.send(first.message(b"over the older"))
            await until(lambda: node.stats().received == 2, "what came over the older link")
            batches = node.batches()
            assert len(await within(anext(batches))) == 2
            following = asyncio.ensure_future(anext(batches))
            for link in (second, first):
                assert (await within(link.read_frame())).kind == ACK
            following.cancel()
            await asyncio.wait([following])


@pytest.mark.asyncio
@pytest.mark.usefixtures("soon")
async def test_a_number_over_the_trusted_link_proves_nothing() -> None:
    """A peer that returns the number where it was asked does not vouch for the stranger."""
    async with make(Inbox()) as node, raw_listener() as listener:
        told = Told(node)
        async with held(node, listener.port) as true, raw_dialling(node, port=listener.port, identity=IDENTITY):
            true.send(session(PROOF + await asked(true)))
            await until(lambda: len(node.peers) == 2, "the stranger")
            await turns()
            assert told.names == ["connected", "conflict", "connected"]


@pytest.mark.asyncio
@pytest.mark.usefixtures("soon")
async def test_a_stranger_that_leaves_leaves_nothing() -> None:
    """A link that is gone before its time is over is neither a peer nor a conflict."""
    async with make(Inbox()) as node, raw_listener() as listener:
        told = Told(node)
        async with held(node, listener.port) as true:
            async with raw_dialling(node, port=listener.port, identity=IDENTITY):
                await asked(true)
            await until(lambda: node.stats().connections == 1, "the end of the first stranger")
            async with raw_dialling(node, port=listener.port, identity=IDENTITY):
                await asked(true)
                # By then the time of the first is over too.
                await until(lambda: len(node.peers) == 2, "the second stranger")
                await turns()
                assert told.names == ["connected", "conflict", "connected"]


@pytest.mark.asyncio
async def test_what_waits_for_a_claim_outlives_a_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """A goodbye on a link whose claim is open does not close it over the messages that wait: they are handled first."""
    monkeypatch.setattr(admission_module, "CLAIM_TIMEOUT", 0.2)
    inbox = Inbox()
    async with make(inbox) as node, raw_listener() as listener, held(node, listener.port) as true:
        async with raw_dialling(node, port=listener.port, identity=IDENTITY) as second:
            message = second.message(b"last")
            second.send(message)
            second.send(Frame(BLANK, 0, GOODBYE, data=b"\x02"))
            await asked(true)
            kinds = {(await within(second.read_frame())).kind for _ in range(2)}
            assert kinds == {GOODBYE, ACK}
            assert inbox.begun == [b"last"]


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
async def test_what_waits_for_a_claim_is_told_of_a_stop() -> None:
    """A node that stops waits for no proof: its goodbye says of what came over such a link that it was not taken."""
    inbox = Inbox()
    node = make(inbox)
    await node.start()
    async with raw_listener() as listener, held(node, listener.port) as true:
        async with raw_dialling(node, port=listener.port, identity=IDENTITY) as second:
            message = second.message(b"late")
            second.send(message)
            await asked(true)
            assert await frames_until_pong(second) == []
            stopping = asyncio.ensure_future(node.stop(0.5))
            goodbye = await within(second.read_frame())
            assert (goodbye.kind, goodbye.serial, goodbye.data) == (GOODBYE, message.serial - 1, b"\0")
        await within(stopping)
    assert inbox.begun == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
async def test_an_identity_comes_free_with_its_last_link() -> None:
    """When the holder's link is gone while a claim is open, the new link has the identity, without a conflict."""
    inbox = Inbox()
    async with make(inbox) as node, raw_listener() as listener:
        told = Told(node)
        async with held(node, listener.port) as first:
            async with raw_dialling(node, port=listener.port, identity=IDENTITY) as second:
                await asked(first)
                second.send(second.message(b"waits"))
                assert await frames_until_pong(second) == []
                first.close()
                assert (await within(second.read_frame())).kind == ACK
                assert inbox.begun == [b"waits"]
                await turns()
                assert told.names == ["connected", "lost", "connected"]
                assert len(node.peers) == 1
                assert node.stats().reconnects == 1
                assert node.stats().conflicts == 0


@pytest.mark.asyncio
@pytest.mark.usefixtures("soon")
async def test_a_silent_holder_loses_its_address() -> None:
    """The address means the newer link's peer if the older one's did not show a sign of life in that time."""
    async with make(Inbox()) as node, raw_listener() as listener:
        told = Told(node)
        address = Address("tcp", "127.0.0.1", listener.port)
        async with (
            held(node, listener.port) as silent,
            raw_dialling(node, port=listener.port, identity=IDENTITY) as newer,
        ):
            await asked(silent, alive=False)
            await until(lambda: "conflict" in told.names, "the conflict")
            await within(node.send(Message(b"to who is there", address), acknowledge=False))
            assert (await within(newer.read_frame())).data == b"to who is there"


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("count", "size"), [(5, 1), (3, 40_000)])
async def test_a_claim_does_not_hold_more_than_a_window(count: int, size: int) -> None:
    """A link that brings more than a window before it is proven is a peer of its own at once, and slowed like any."""
    inbox = Inbox()
    limits = {"window": 4, "window_bytes": 65_536, "max_message_size": 40_000, "lookahead": 1}
    async with make(inbox, slots=1, **limits) as node, raw_listener() as listener:
        told = Told(node)
        async with (
            held(node, listener.port) as true,
            raw_dialling(node, port=listener.port, identity=IDENTITY) as false,
        ):
            await asked(true)
            for _ in range(count):
                await false.write_all(false.message(bytes(size)).encode())
            await inbox.holds(count)
            await turns()
            assert told.names == ["connected", "conflict", "connected"]


@pytest.mark.asyncio
@pytest.mark.usefixtures("late")
async def test_a_node_proves_what_it_dialled() -> None:
    """Asked over any link of a peer for a proof, a node returns it over the link that it dialled, and over no other."""
    async with make(Inbox()) as node, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = node.send(Message(b"dials", address))
        async with raw_accepting(listener, identity=IDENTITY) as dialled:
            message = await within(dialled.read_frame())
            dialled.send(Frame(message.identity, message.serial, ACK))
            await within(sending)
            async with raw_dialling(node, port=listener.port, identity=IDENTITY) as back:
                await asked(dialled)
                back.send(session(PROVE + NUMBER))
                proof = await within(dialled.read_frame())
                assert (proof.kind, proof.data) == (SESSION, PROOF + NUMBER)
                dialled.send(session(PROVE + NUMBER))
                assert await frames_until_pong(dialled) == []
                assert await frames_until_pong(back) == []


class Unseen(set[Connection]):
    """Connections that nobody may go through."""

    def __iter__(self) -> Iterator[Connection]:
        raise AssertionError("all connections were gone through")


@pytest.mark.asyncio
async def test_a_question_costs_the_same_however_many_links_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for proofs, or brings wrong ones, makes the node look at links to its own identity alone."""
    async with make(Inbox()) as node, raw_listener() as listener:
        async with held(node, listener.port) as asking:
            seen: list[Connection] = []
            for name in ("_prove", "_may_lead_to"):
                monkeypatch.setattr(claims_module, name, lambda dialled, *_: seen.append(dialled))
            others = [to(node, b"to itself") for _ in range(3)]
            await within(asyncio.gather(*map(node.send, others)))
            peers = node._peers
            assert any(peers.admission.claims._dialled.values())
            monkeypatch.setattr(peers, "connections", Unseen(peers.connections))
            for kind in (PROVE, PROOF):
                asking.send(session(kind + NUMBER))
            assert await frames_until_pong(asking) == []
            assert seen == []
            monkeypatch.undo()


# Two nodes


@pytest.mark.asyncio
@pytest.mark.parametrize("smaller", ["one", "two"])
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_nodes_that_dial_each_other_at_once(
    smaller: str, acknowledge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes that dial each other end with one link, no conflict, and everything once and in order."""
    accepted: list[Peers] = []
    accept = Peers.accepted

    def counted(self: Peers, remote: Address) -> asyncio.BufferedProtocol:
        accepted.append(self)
        return accept(self, remote)

    monkeypatch.setattr(Peers, "accepted", counted)
    low, high = b"a" * 16, b"b" * 16
    identities = (low, high) if smaller == "one" else (high, low)
    for _ in range(5):
        accepted.clear()
        inboxes = Inbox(answer=b"two"), Inbox(answer=b"one")
        async with make(inboxes[0], identity=identities[0]) as one, make(inboxes[1], identity=identities[1]) as two:
            told = Told(one), Told(two)
            texts = [str(number).encode() for number in range(100)]
            sendings = [
                sender.send(to(receiver, text), acknowledge=acknowledge)
                for text in texts
                for sender, receiver in ((one, two), (two, one))
            ]
            await within(asyncio.gather(*sendings))
            for inbox in inboxes:
                await inbox.holds(100)
            assert len(accepted) == len(set(accepted)) == 2
            await until(
                lambda: one.stats().connections == two.stats().connections == 1, "one of the two links to be left"
            )
            for inbox, hooks, node in zip(inboxes, told, (one, two), strict=True):
                assert inbox.begun == texts
                await turns()
                assert hooks.names == ["connected"]
                assert node.stats().conflicts == 0
                assert len(node.peers) == 1
            answers = await within(asyncio.gather(one.request(to(two)), two.request(to(one))))
            assert [answer.data for answer in answers] == [b"one", b"two"]
