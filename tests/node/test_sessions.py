"""Sessions that survive their links: what waits, what comes again, who is known by a secret, and who is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redpoll import Closed, Message, NoAnswer, Node, NotConfirmed, NotSent, PeerLost, RedpollError
from redpoll.errors import Fenced
from redpoll.node import sessions as sessions_module
from redpoll.node.peers import Peers
from redpoll.testing import FaultProxy
from redpoll.testing.plugin import FaultsFactory
from redpoll.wire.peer import Peer
from tests.interop.raw import Frame, RawLink, raw_listener
from tests.node.support import Inbox, Proxy, elapse, make, raw_accepting, raw_dialling, settle, to, turns, until, within
from tests.wire.support import NOOP, REQ_ACK, SESSION

pytestmark = pytest.mark.asyncio

IDENTITY = b"I" * 16
SECRET = b"S" * 16
OTHER = b"T" * 16
PATIENT: dict[str, Any] = {"resume": 30.0, "timeout": None}


class Told(Node[Any]):
    """A node that notes what it is told of sessions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.told: list[str] = []
        self.errors: list[RedpollError] = []
        super().__init__(*args, **options)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self.told.append("renewed" if renewed else "began")

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self.told.append("ended")
        self.errors.append(error)


def peers_of(node: Node[Any]) -> Peers:
    return node._peers


async def crash(node: Node[Any]) -> None:
    """Let a node end as its process does when it is killed: without a word."""
    peers = peers_of(node)
    peers.closing = Closed("node")
    for connection in list(peers.connections):
        connection.give_up(PeerLost(None, "killed"))
    await node.stop(drain=0)


@asynccontextmanager
async def killed(node: Node[Any]) -> AsyncIterator[Node[Any]]:
    """A node that is killed at the end."""
    await node.start()
    try:
        yield node
    finally:
        await crash(node)


# What waits for the next link


@pytest.mark.parametrize("listens", [True, False])
async def test_what_was_in_flight_is_done_once(listens: bool) -> None:
    """What was handled and not confirmed when the link was cut is confirmed over the next one, and not handled again."""
    inbox = Inbox()
    options: dict[str, Any] = {} if listens else {"listen": False}
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**PATIENT, **options) as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        sends = [client.send(Message(b"%d" % number, proxy.address)) for number in range(100)]
        await until(lambda: len(inbox.ended) == 64, "a window to be handled")
        await proxy.cut()
        proxy.answers.set()
        await within(asyncio.gather(*sends))
        assert inbox.begun == [b"%d" % number for number in range(100)]
        stats = client.stats()
        assert (stats.resumed, stats.resent) == (1, 64)


async def test_what_never_arrived_comes_first_and_in_order() -> None:
    """What was lost on its way is sent before what waited behind it, and says that it may have come before."""
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**PATIENT) as client:
        await client.ready(proxy.address)
        proxy.questions.clear()
        sends = [client.send(Message(b"%d" % number, proxy.address)) for number in range(70)]
        await until(lambda: client.stats().in_flight == 64, "a window to be written")
        await proxy.cut()
        proxy.questions.set()
        sends.append(client.send(Message(b"70", proxy.address)))
        await within(asyncio.gather(*sends))
        assert inbox.begun == [b"%d" % number for number in range(71)]
        assert [each.redelivered for each in inbox.messages] == [True] * 64 + [False] * 7


async def test_without_resume_it_is_not_confirmed() -> None:
    """The default is as ever: what was in flight fails with its link."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, Proxy(server.address) as proxy, make(timeout=None) as client:
        sending = client.send(Message(b"x", proxy.address))
        await inbox.holds(1)
        await proxy.cut()
        with pytest.raises(NotConfirmed):
            await within(sending)
        assert [peer.resuming for peer in client.peers] in ([], [False])
        inbox.gate.set()


async def test_one_that_does_not_listen_is_reached_again() -> None:
    """A reply to a peer that is gone for a while waits for it, and so does what was in flight to it."""
    server_inbox, client_inbox = Inbox(), Inbox()
    client = make(client_inbox, listen=False, resume=30.0)
    async with make(server_inbox, **PATIENT) as server, Proxy(server.address) as proxy, client:
        await within(client.send(Message(b"hello", proxy.address)))
        (hello,) = server_inbox.messages
        proxy.answers.clear()
        lost = server.send(hello.reply(b"lost on its way"))
        await until(lambda: server.stats().in_flight == 1, "it to be written")
        await proxy.cut()
        await until(lambda: any(peer.resuming for peer in server.peers), "the end of the link")
        late = server.send(hello.reply(b"sent while it was away"))
        await turns()
        assert not late.done()
        proxy.answers.set()
        await within(asyncio.gather(lost, late))
        assert client_inbox.begun == [b"lost on its way", b"sent while it was away"]
        assert not any(peer.resuming for peer in server.peers)


async def test_who_dialled_dials_again_with_nothing_to_send() -> None:
    """The other end may have something for it: a lost link comes back by itself."""
    async with (
        make(lambda _: None) as server,
        Proxy(server.address) as proxy,
        make(listen=False, resume=30.0) as client,
    ):
        await client.ready(proxy.address)
        for number in range(3):
            await proxy.cut()
            await until(lambda n=number: client.stats().resumed == n + 1, "the next link")  # type: ignore[misc]
        assert client.stats().sent == 0


async def test_a_goodbye_ends_it() -> None:
    """Who said goodbye is not dialled again."""
    node = Told(resume=30.0, listen=False)
    async with node:
        async with make(lambda _: None) as server:
            await within(node.send(to(server)))
        await until(lambda: node.told == ["began", "ended"], "the end")
        assert node.stats().resumed == 0
        assert not any(peer.resuming for peer in node.peers)
        assert peers_of(node).dialler._tasks == {}


async def test_a_stop_ends_it() -> None:
    """A node that stops waits for no session without a link, and leaves nothing behind."""
    async with make(lambda _: None) as server, Proxy(server.address) as proxy:
        node = Told(resume=30.0, listen=False)
        async with node:
            await node.ready(proxy.address)
            proxy._server.close()
            await proxy.cut()
            await until(lambda: any(peer.resuming for peer in node.peers), "the end of the link")
        assert node.told == ["began", "ended"]
        assert len(peers_of(node).sessions) == 0


async def test_its_time_ends_it() -> None:
    """After `resume` seconds what was in flight is not confirmed, and what waited was not sent, for want of a link."""
    inbox = Inbox(hold=True)
    node = Told(resume=0.2, timeout=None, window=1)
    async with make(inbox, window=1) as server, Proxy(server.address) as proxy, node:
        sends = [node.send(Message(b"%d" % number, proxy.address)) for number in range(3)]
        await inbox.holds(1)
        proxy._server.close()
        await proxy.cut()
        await settle(*sends)
        errors = [each.exception() for each in sends]
        assert [type(error) for error in errors] == [NotConfirmed, NotSent, NotSent]
        assert all(isinstance(error, BaseException) and isinstance(error.__cause__, PeerLost) for error in errors)
        assert "no other for 0.2 s" in str(errors[1])
        assert node.told == ["began", "ended"]
        assert not peers_of(node).sessions
        inbox.gate.set()


async def test_a_message_has_its_own_time_besides() -> None:
    """A deadline ends a message while its session goes on: one that was in flight as not confirmed."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, Proxy(server.address) as proxy, make(resume=30.0) as client:
        sending = client.send(Message(b"x", proxy.address), timeout=0.4)
        await inbox.holds(1)
        proxy._server.close()
        await proxy.cut()
        with pytest.raises(NotConfirmed) as caught:
            await within(sending)
        assert isinstance(caught.value, TimeoutError)
        assert any(peer.resuming for peer in client.peers)
        inbox.gate.set()


async def test_a_request_is_answered_over_the_next_link() -> None:
    """A request whose handler runs when the link is cut gets its answer."""
    inbox = Inbox(hold=True, answer=b"pong")
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**PATIENT) as client:
        asked = client.request(Message(b"ping", proxy.address))
        await inbox.holds(1)
        await proxy.cut()
        await until(lambda: client.stats().resent == 1, "the request to be sent again")
        await until(lambda: server.stats().connections == 1, "the end of the old link")
        inbox.gate.set()
        assert (await within(asked)).data == b"pong"
        assert inbox.begun == [b"ping"]


async def test_a_link_that_nobody_knows_to_be_dead_gives_way() -> None:
    """Who lost a link that the other end still believes in gets through at once: its secret proves its next one."""
    inbox = Inbox()
    async with make(inbox, keepalive=None) as server:
        async with FaultProxy(server.address) as proxy, make(**PATIENT, listen=False) as client:
            await within(client.send(Message(b"1", proxy.address)))
            proxy.freeze("both", to="present")
            sending = client.send(Message(b"2", proxy.address))
            await until(lambda: client.stats().in_flight == 1, "it to be written")
            (connection,) = peers_of(client).connections
            connection.give_up(PeerLost(None, "cut"))
            await within(sending)
            assert inbox.begun == [b"1", b"2"]
            assert server.stats().conflicts == 0


async def test_outcomes_are_remembered_as_long_as_the_sender_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver without sessions remembers what it answered for the time that the sender's session lasts."""
    monkeypatch.setattr("redpoll.node.peers.REMEMBERED_FOR", 0.05)
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**PATIENT, listen=False) as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        sending = client.send(Message(b"once", proxy.address))
        await until(lambda: inbox.ended == [b"once"], "the handler to end")
        address, port = proxy.address, proxy._server
        port.close()
        await proxy.cut()
        await elapse(0.2)
        proxy.answers.set()
        proxy._server = await asyncio.start_server(proxy._accept, address.host, address.port)
        await within(sending)
        assert inbox.begun == [b"once"]


async def test_nothing_is_done_twice_through_many_cuts(redpoll_faults: FaultsFactory) -> None:
    """Both ends send while the link is cut again and again: each message is handled once, in order."""
    there, here = Inbox(), Inbox()
    async with make(there, **PATIENT) as server, redpoll_faults(server) as proxy:
        async with make(here, **PATIENT, listen=False) as client:
            await within(client.send(Message(b"hello", proxy.address)))
            (hello,) = there.messages
            sends: list[asyncio.Future[None]] = []
            for number in range(40):
                for each in range(10):
                    data = b"%d" % (number * 10 + each)
                    sends.append(client.send(Message(data, proxy.address)))
                    sends.append(server.send(hello.reply(data)))
                if number % 4 == 0:
                    await turns(number)
                    proxy.cut("rst" if number % 8 else "fin")
                await turns(3)
            await within(asyncio.gather(*sends))
            numbers = [b"%d" % number for number in range(400)]
            assert here.begun == numbers
            assert there.begun == [b"hello", *numbers]
            assert client.stats().resumed > 0


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
            with pytest.raises(NotConfirmed, match="started again"):
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
            assert "started again" in str(waiting.exception())
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


# Bounds


async def test_sessions_without_a_link_are_bounded() -> None:
    """There are no more than `max_connections` of them: the one that waits for longest ends, and is counted."""
    server = Told(lambda _: None, port=0, resume=30.0, max_connections=2)
    async with server:
        for number in range(4):
            async with raw_dialling(server, port=0, identity=bytes([number + 1]) * 16):
                await until(lambda: server.stats().connections == 1, "the link")
            await until(lambda: server.stats().connections == 0, "its end")
        assert sum(peer.resuming for peer in server.peers) == 2
        assert server.stats().turned_away.sessions_ended == 2
        assert server.told.count("ended") == 2
        assert [peer.identity for peer in server.peers] == [bytes([number]) * 16 for number in (3, 4)]


async def test_sessions_of_one_host_are_bounded() -> None:
    """One host has no more of them than `max_connections_per_host`, and drives out none but its own."""
    server = Told(lambda _: None, port=0, resume=30.0, max_connections_per_host=1)
    async with server:
        for number in range(3):
            async with raw_dialling(server, port=0, identity=bytes([number + 1]) * 16):
                await until(lambda: server.stats().connections == 1, "the link")
            await until(lambda: server.stats().connections == 0, "its end")
        assert [peer.identity for peer in server.peers] == [bytes([3]) * 16]


async def test_places_where_it_was_fenced_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many addresses are remembered where another run took over; the oldest is forgotten."""
    monkeypatch.setattr(sessions_module, "MAX_FENCED", 2)
    async with make(listen=False, secret=SECRET, timeout=None) as node:
        for number in range(4):
            async with raw_listener() as listener:
                sending = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
                async with raw_accepting(listener, identity=bytes([number + 1]) * 16) as link:
                    link.send(Frame(bytes(16), 0, SESSION, data=b"\x05"))
                    await settle(sending)
        assert len(peers_of(node).sessions._fenced) == 2


@pytest.mark.parametrize(
    "bodies", [[b"\x04"], [b"\x04\x01\0\0\0"], [b"\x04\0\0\0\0\x05" + SECRET], [b"\x04\x01\0\0\0\x05" + SECRET] * 2]
)
async def test_what_is_wrong_with_a_session_frame_is_counted(bodies: list[bytes]) -> None:
    """A secret that is cut off, of no version, or shown twice does no harm; the link goes on."""
    inbox = Inbox()
    async with make(inbox) as server, raw_dialling(server, port=0, identity=IDENTITY) as link:
        for body in bodies:
            link.send(Frame(bytes(16), 0, SESSION, data=body))
        link.send(link.message(b"x", kind=REQ_ACK))
        await inbox.holds(1)
        assert server.stats().turned_away.sessions_refused == 1


async def test_a_secret_that_is_promised_and_not_shown_holds_nothing_up() -> None:
    """Who said that it shows a secret and sends a message instead shows none."""
    inbox = Inbox()
    async with make(inbox) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        try:
            opening = announcing(flags=0x03)
            link.write(b"\0\0" + IDENTITY + opening)
            await link.read(18 + 27)
            await turns()
            assert server.peers == ()
            link.send(link.message(b"x", kind=REQ_ACK))
            await inbox.holds(1)
        finally:
            link.close()


def announcing(*, flags: int, epoch: int = 77) -> bytes:
    fields = b"\xf2r\x01" + bytes([flags]) + b"\0\1\0\0\0\x40\0\x40\0\1\x90\0"
    return Frame(fields, epoch, NOOP).encode()


async def test_requests_that_were_answered_are_not_answered_again() -> None:
    """A request whose answer was lost with its link ends at once: it was done, and its answer is not kept."""
    inbox = Inbox(answer=b"pong")
    async with make(inbox) as server, Proxy(server.address) as proxy, make(**PATIENT) as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        asked = client.request(Message(b"ping", proxy.address))
        await until(lambda: inbox.ended == [b"ping"], "the handler to end")
        await proxy.cut()
        proxy.answers.set()
        with pytest.raises(NoAnswer):
            await within(asked)
        assert inbox.begun == [b"ping"]
