"""Sessions that survive their links: what waits, what comes again, who is known by a secret, and who is fenced."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from redpoll import TLS, Message, NoAnswer, NotConfirmed, NotSent, PeerLost, Received
from redpoll.node import sessions as sessions_module
from redpoll.node.hooks import PeerInfo
from redpoll.testing import FaultProxy, Faults
from redpoll.testing.certificates import Certificates
from redpoll.testing.faults import Direction
from redpoll.testing.plugin import FaultsFactory
from tests.interop.raw import Frame, RawLink, raw_listener
from tests.node.resuming import IDENTITY, PATIENT, SECRET, Told, announcing, crash, peers_of
from tests.node.support import Inbox, Proxy, elapse, make, raw_accepting, raw_dialling, settle, to, turns, until, within
from tests.wire.support import REQ_ACK, SESSION

pytestmark = pytest.mark.asyncio

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


async def test_a_link_that_is_lost_while_its_node_closes() -> None:
    """No session begins to wait when the node closes: nothing is left of it."""
    async with make(lambda _: None) as server:
        node = Told(resume=30.0, timeout=None)
        await node.start()
        await node.ready(server.address)
        await crash(node)
        assert node.told == ["began", "ended"]
        assert len(peers_of(node).sessions) == 0
        assert not any(peer.resuming for peer in node.peers)


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
        assert "no other was made within 0.2 s" in str(errors[1])
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


@pytest.mark.parametrize(("requests", "options"), [(1, {"window": 1}), (64, {"window": 1}), (64, {"slots": 64})])
@pytest.mark.parametrize("size", [0, 6, 300_000])
async def test_answers_computed_after_a_cut_come_whole(requests: int, options: dict[str, Any], size: int) -> None:
    """Requests whose handlers return once the link is another one have their answers, however large, wherever they wait."""
    inbox = Inbox(hold=True, answer=bytes(size))
    connected: list[PeerInfo] = []
    async with make(inbox, fragment_size=65_536, **options) as server, Proxy(server.address) as proxy:
        server.events.peer_connected = connected.append
        async with make(**PATIENT) as client:
            asked = [client.request(Message(b"%d" % number, proxy.address)) for number in range(requests)]
            await inbox.holds(options.get("slots", 1))
            await proxy.cut()
            await until(lambda: len(connected) == 2, "the next link")
            inbox.gate.set()
            answers = await within(asyncio.gather(*asked))
            assert {bytes(answer.data) for answer in answers} == {bytes(size)}
            assert sorted(inbox.begun) == sorted(b"%d" % number for number in range(requests))
            assert client.stats().late == 0


@pytest.mark.parametrize("options", [PATIENT, {"retry": 3}])
async def test_what_a_peer_has_forgotten_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A node that has forgotten who sends again does not handle it, and the sender learns that it may have been handled."""
    monkeypatch.setattr("redpoll.node.peers.REMEMBERED_FOR", 0.01)
    monkeypatch.setattr("redpoll.node.connection_limits.MAX_RESUME", 0.0)
    retry = options.get("retry", 0)
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy:
        async with make(listen=False, resume=options.get("resume"), timeout=None) as client:
            await client.ready(proxy.address)
            proxy.answers.clear()
            sending = client.send(Message(b"once", proxy.address), retry=retry)
            await until(lambda: inbox.ended == [b"once"], "the handler to end")
            address, port = proxy.address, proxy._server
            port.close()
            await proxy.cut()
            await until(lambda: not server.peers, "it to be forgotten")
            behind = client.send(Message(b"behind", proxy.address))
            proxy.answers.set()
            proxy._server = await asyncio.start_server(proxy._accept, address.host, address.port)
            with pytest.raises(NotConfirmed, match="the peer no longer knows whether it was handled"):
                await within(sending)
            await within(behind)
            assert inbox.begun == [b"once", b"behind"]


async def test_strangers_drive_out_nobody_who_comes_back() -> None:
    """As many strangers as like come and go while a node is away that resumes: it is not forgotten for them."""
    inbox = Inbox()
    limits = {"max_connections": 10, "max_connections_per_host": 5}
    async with make(inbox, **limits) as server, Proxy(server.address) as proxy, make(**PATIENT) as client:
        await client.ready(proxy.address)
        proxy.answers.clear()
        sending = client.send(Message(b"once", proxy.address))
        await until(lambda: inbox.ended == [b"once"], "the handler to end")
        proxy._server.close()
        await proxy.cut()
        for number in range(20):
            async with raw_dialling(server, port=0, identity=bytes([number + 1]) * 16) as stranger:
                stranger.send(stranger.message(b"x"))
                await within(stranger.read_frame())
            await until(lambda: server.stats().connections == 0, "its end")
        address = proxy.address
        proxy.answers.set()
        proxy._server = await asyncio.start_server(proxy._accept, address.host, address.port)
        await within(sending)
        assert inbox.begun == [b"once", *[b"x"] * 20]


async def test_all_that_may_be_linked_may_be_gone_at_once() -> None:
    """A network that fails for as many nodes as may be linked, and eats acknowledgements, costs none of them anything."""
    count = 30
    inbox = Inbox()
    async with make(inbox, max_connections=count) as server, Proxy(server.address) as proxy, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(make(**PATIENT, listen=False)) for _ in range(count)]
        for client in clients:
            await client.ready(proxy.address)
        proxy.answers.clear()
        sends = [client.send(Message(b"%d" % number, proxy.address)) for number, client in enumerate(clients)]
        await until(lambda: len(inbox.ended) == count, "the handlers to end")
        await proxy.cut()
        await until(lambda: server.stats().connections == 0, "the links to be lost")
        proxy.answers.set()
        await within(asyncio.gather(*sends))
        assert sorted(inbox.begun) == sorted(b"%d" % number for number in range(count))


@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_a_first_contact_that_is_cut_anywhere(direction: Direction) -> None:
    """A send succeeds, and is handled once, also where the very first link is cut, at any of its bytes."""
    for position in range(1, 180, 6):
        inbox = Inbox()
        async with make(inbox) as server, FaultProxy(server.address) as proxy, make(**PATIENT) as client:
            proxy.set(Faults(cut_after=position), direction)
            sending = client.send(Message(b"once", proxy.address))
            await until(partial(_cut_or_done, proxy, sending), "the cut")
            proxy.set()
            await within(sending)
            assert inbox.begun == [b"once"], position


def _cut_or_done(proxy: FaultProxy, sends: asyncio.Future[Any]) -> bool:
    return proxy.stats().rst > 0 or sends.done()


@pytest.mark.parametrize("resume", [30.0, None])
@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_requests_whose_link_is_cut_anywhere(direction: Direction, resume: float | None) -> None:
    """A request has its whole answer, or an error of its own, wherever in its bytes or its answer's the link is cut."""

    async def handler(message: Received[bytes]) -> bytes:
        await asyncio.sleep(0)
        return message.data * 2

    for position in (*range(1, 500, 41), 3_000, 70_000, 100_000, 139_000, 141_000, 200_000):
        ends: list[Any] = []
        async with make(handler, slots=4, fragment_size=65_536) as server, FaultProxy(server.address) as proxy:
            async with make(resume=resume, fragment_size=65_536) as client:
                proxy.set(Faults(cut_after=position), direction)
                asked = [client.request(Message(bytes(size), proxy.address)) for size in (1, 100, 70_000, 5)]
                all_of_them: asyncio.Future[Any] = asyncio.gather(*asked, return_exceptions=True)
                await until(partial(_cut_or_done, proxy, all_of_them), "the cut")
                proxy.set()
                ends = await within(all_of_them)
        for size, end in zip((1, 100, 70_000, 5), ends, strict=True):
            if isinstance(end, Message):
                assert bytes(end.data) == bytes(2 * size)
            else:
                assert isinstance(end, NoAnswer if resume else NoAnswer | NotConfirmed), position


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


@pytest.mark.parametrize("direction", ["forward", "back"])
@pytest.mark.parametrize("asking", [False, True])
async def test_links_that_last_for_a_few_messages_each(
    redpoll_faults: FaultsFactory, direction: Direction, *, asking: bool
) -> None:
    """Over links that are cut after 50 kB, whichever way, a window of messages ends, each handled once."""
    there, here = Inbox(answer=bytes(4_000)), Inbox()
    async with (
        make(there, **PATIENT) as server,
        redpoll_faults(server) as proxy,
        make(here, **PATIENT, listen=False) as client,
    ):
        await within(client.send(Message(b"hello", proxy.address)))
        (hello,) = there.messages
        proxy.set(Faults(delay=0.01, cut_after=50_000), direction)
        bodies = [b"%4d" % number * 1_000 for number in range(96)]
        sends: list[asyncio.Future[Any]]
        if asking:
            sends = [client.request(Message(body, proxy.address)) for body in bodies]
        elif direction == "forward":
            sends = [client.send(Message(body, proxy.address)) for body in bodies]
        else:
            sends = [server.send(hello.reply(body)) for body in bodies]
        ends = await within(asyncio.gather(*sends, return_exceptions=True))
        assert {type(end) for end in ends if isinstance(end, BaseException)} <= ({NoAnswer} if asking else set())
        inbox = there if asking or direction == "forward" else here
        assert sorted(inbox.begun) == sorted([b"hello"] * (inbox is there) + bodies)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_both_ends_may_dial(redpoll_pki: Certificates, encrypted: bool) -> None:
    """Two nodes that dial each other, and lose a link here and there, have one session, and nothing is done twice."""
    here, there = Inbox(), Inbox()
    chance = random.Random(4711)
    names = ("one", "other")
    tls = [{"tls": TLS(certificate=redpoll_pki.issue(name)), "encryption": True} if encrypted else {} for name in names]
    async with make(here, **PATIENT, **tls[0]) as one, make(there, **PATIENT, **tls[1]) as other:
        sends: list[asyncio.Future[None]] = []
        for number in range(300):
            data = b"%d" % number
            sends += [one.send(to(other, data)), other.send(to(one, data))]
            connections = [*peers_of(one).connections, *peers_of(other).connections]
            if number % 15 == 14 and connections:
                chance.choice(connections).fail(PeerLost(None, "cut"))
            await turns(chance.randrange(8))
        await within(asyncio.gather(*sends))
        assert here.begun == there.begun == [b"%d" % number for number in range(300)]
        assert one.stats().conflicts == other.stats().conflicts == 0
        assert one.stats().resumed > 0


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


async def test_strangers_end_no_session() -> None:
    """What waits for a peer whose session lasts goes on waiting, however many come and go that have none."""
    server = Told(lambda _: None, port=0, resume=30.0, max_connections=3, max_connections_per_host=3)
    async with server, make(Inbox(), **PATIENT, listen=False) as client, Proxy(server.address) as proxy:
        await within(client.send(Message(b"hello", proxy.address)))
        proxy._server.close()
        await proxy.cut()
        await until(lambda: server.stats().connections == 0, "its link to be lost")
        for number in range(6):
            async with raw_dialling(server, port=0, identity=bytes([number + 1]) * 16):
                await until(lambda: server.stats().connections == 1, "the link")
            await until(lambda: server.stats().connections == 0, "its end")
        identities = [peer.identity for peer in server.peers]
        assert client.identity in identities
        assert len(identities) == 3
        assert server.stats().turned_away.sessions_ended == 4


@pytest.mark.parametrize("limit", [2, 3])
async def test_places_where_it_was_fenced_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """So many addresses are remembered where another run took over, of which a name is one; the oldest is forgotten."""
    monkeypatch.setattr(sessions_module, "MAX_FENCED", limit)
    async with make(listen=False, secret=SECRET, timeout=None) as node:
        for number in range(4):
            async with raw_listener() as listener:
                # By its name it has two addresses.
                sending = node.send(Message(b"x", f"localhost:{listener.port}"))
                async with raw_accepting(listener, identity=bytes([number + 1]) * 16) as link:
                    link.send(Frame(bytes(16), 0, SESSION, data=b"\x05"))
                    await settle(sending)
        assert len(peers_of(node).sessions._fenced) == limit


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


async def test_a_secret_that_never_comes_holds_nothing_up() -> None:
    """Who said that it shows a secret and says nothing shows none, once `handshake_timeout` is over."""
    async with make(Inbox(), handshake_timeout=0.2) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        try:
            link.write(b"\0\0" + IDENTITY + announcing(flags=0x03))
            await until(lambda: server.peers, "its peer")
            assert [peer.identity for peer in server.peers] == [IDENTITY]
        finally:
            link.close()


async def test_a_timer_that_rings_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a secret ends when its timer rings, though that may be a rounding error too early, as with uvloop."""

    class Rounding:
        """A loop whose timers ring before the time that they tell."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            self.time = self._loop.time

        def call_later(self, delay: float, *call: Any) -> Any:
            handle = self._loop.call_later(delay, *call)
            return SimpleNamespace(cancel=handle.cancel, when=lambda: handle.when() + 3600)

    async with make(Inbox(), handshake_timeout=0.01) as server:
        monkeypatch.setattr(peers_of(server).admission, "_loop", Rounding())
        link = await RawLink.dial("127.0.0.1", server.address.port)
        try:
            link.write(b"\0\0" + IDENTITY + announcing(flags=0x03))
            await until(lambda: server.peers, "its peer")
        finally:
            link.close()


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
        with pytest.raises(NoAnswer, match="was done, but its answer was lost with the link"):
            await within(asked)
        assert inbox.begun == [b"ping"]
