"""Peers of a node: one link each, told apart, independent, remembered as long as there is a reason, counted."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redpoll import Address, Message, Node, NotConfirmed, PeerLost, RedpollError
from redpoll.node.hooks import PeerInfo
from tests.interop.raw import ACK, DisconnectedError, Frame, RawLink, handshake, raw_listener
from tests.node.support import (
    Inbox,
    Proxy,
    announcement,
    make,
    raw_accepting,
    raw_dialling,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

REQ_ACK, METADATA = 0x01, 0x40


class Told:
    """What the hooks of a node told, in order."""

    def __init__(self, node: Node[Any]) -> None:
        self.connected: list[PeerInfo] = []
        self.suspect: list[PeerInfo] = []
        self.lost: list[tuple[PeerInfo, RedpollError]] = []
        self.conflicts: list[PeerInfo] = []
        node.events.peer_connected = self.connected.append
        node.events.peer_suspect = self.suspect.append
        node.events.peer_lost = lambda peer, error: self.lost.append((peer, error))
        node.events.identity_conflict = self.conflicts.append


def confirm(link: RawLink, frame: Frame) -> None:
    """Acknowledge a message as a redpoll node does, by its serial."""
    link.send(Frame(frame.identity, frame.serial, ACK))


# One link


@pytest.mark.parametrize("kind", ["tcp", "unix", "inproc"])
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_both_dial_at_once(kind: str, acknowledge: bool, tmp_path: Path) -> None:
    """Nodes that dial each other at the same time keep one link; every message arrives once, in order."""
    hosts = {
        "tcp": ("127.0.0.1", "127.0.0.1"),
        "unix": (f"unix:{tmp_path / 'a'}", f"unix:{tmp_path / 'b'}"),
        "inproc": ("inproc:a", "inproc:b"),
    }[kind]
    for head_start in (*range(8), 12):
        inboxes = Inbox(), Inbox()
        async with (
            make(inboxes[0], host=hosts[0], acknowledge=acknowledge) as one,
            make(inboxes[1], host=hosts[1], acknowledge=acknowledge) as two,
        ):
            numbers = [number.to_bytes(2, "big") for number in range(40)]
            futures = [one.send(to(two, number)) for number in numbers[:20]]
            await turns(head_start)
            futures += [two.send(to(one, number)) for number in numbers[:20]]
            for number in numbers[20:]:
                futures += [one.send(to(two, number)), two.send(to(one, number))]
                await asyncio.sleep(0)
            await within(asyncio.gather(*futures))
            for inbox in inboxes:
                await inbox.holds(40)
                assert inbox.begun == numbers
            await until(lambda: one.stats().connections == 1 == two.stats().connections, "one link")
            assert len(one.peers) == len(two.peers) == 1
            assert one.stats().conflicts == two.stats().conflicts == 0
            await within(asyncio.gather(one.send(to(two)), two.send(to(one))))
            assert one.stats().connections == 1


async def test_a_link_that_came_in_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that has a link is never dialled, whoever made that link."""
    inbox = Inbox()
    async with make(inbox) as server, make(Inbox()) as client:
        await within(client.send(to(server)))

        async def fail(*_: object, **__: object) -> None:
            raise AssertionError

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail, raising=False)
        await within(server.send(Message(b"x", inbox.messages[0].address)))
        await within(server.send(to(client)))
        await within(server.ready(client.address))
        assert await within(server.check(client.address))


async def test_hooks_tell_of_first_and_last_link() -> None:
    """A peer is connected with its first link and lost with its last, once each, with who it is and why."""
    async with make(Inbox()) as server:
        told = Told(server)
        client = make()
        await client.start()
        await within(client.send(to(server)))
        port = client.address.port
        await within(client.stop())
        await until(lambda: told.lost, "the loss")
    (connected,) = told.connected
    assert connected == PeerInfo(Address("tcp", "127.0.0.1", port), client.identity, connected=True, redpoll=True)
    ((lost, error),) = told.lost
    assert lost == connected._replace(connected=False)
    assert isinstance(error, PeerLost)
    assert str(error) == f"lost the peer 127.0.0.1:{port}: the link ended with a goodbye"


# Who is who


async def test_two_nodes_behind_one_address() -> None:
    """Two identities behind one host and port are two peers: each gets its own answers, a plain address the newer."""
    inbox = Inbox()
    public = free_port()
    async with make(inbox) as server:
        async with (
            make(Inbox(), public_port=public) as one,
            make(Inbox(), public_port=public) as two,
        ):
            await within(one.send(to(server, b"from one")))
            await within(two.send(to(server, b"from two")))
            assert {peer.identity for peer in server.peers} == {one.identity, two.identity}
            assert {peer.address for peer in server.peers} == {Address("tcp", "127.0.0.1", public)}
            assert server.stats().conflicts == 0
            first, second = inbox.messages
            assert (first.remote_identity, second.remote_identity) == (one.identity, two.identity)
            for message in (first, second):
                await within(server.send(message.reply(b"to " + message.data[5:])))
            await within(server.send(Message(b"to whoever", f"127.0.0.1:{public}")))
            assert _data(one) == [b"to one"]
            assert _data(two) == [b"to two", b"to whoever"]


def _data(node: Node[Any]) -> list[bytes]:
    """What the inbox of a node began."""
    handler = node._handler
    assert isinstance(handler, Inbox)
    return handler.begun


async def test_an_identity_that_is_taken_is_a_conflict() -> None:
    """Another node with the identity of a live peer is a peer of its own: counted, told, and served all the same."""
    inbox = Inbox()
    identity = b"who is this node"
    async with make(inbox) as server:
        told = Told(server)
        async with make(Inbox(), identity=identity) as one, make(Inbox(), identity=identity) as two:
            await within(one.send(to(server, b"from one")))
            await within(two.send(to(server, b"from two")))
            await turns()
            assert [peer.address for peer in told.conflicts] == [two.address]
            assert server.stats().conflicts == 1
            assert len(server.peers) == 2
            for message in inbox.messages:
                await within(server.send(message.reply(message.data)))
            assert (_data(one), _data(two)) == ([b"from one"], [b"from two"])
        await until(lambda: not server.peers, "the end of both")
        assert server.stats().conflicts == 1
        async with make(Inbox(), identity=identity) as three:
            await within(three.send(to(server)))
            assert server.stats().conflicts == 1


async def test_a_restarted_node_is_known_by_its_identity() -> None:
    """A node that is given its identity again is the same peer when it is back at its address."""
    port = free_port()
    identity = b"who is this node"
    async with make() as client:
        for _ in range(2):
            async with make(Inbox(), port=port, identity=identity) as server:
                await within(client.send(to(server)))
                assert [peer.identity for peer in client.peers] == [identity]
        assert client.stats().conflicts == 0


async def test_two_links_of_one_peer_share_its_slots() -> None:
    """A libchirp peer may have two links: together they run no more handlers than the peer has slots."""
    inbox = Inbox(hold=True)
    async with make(inbox, slots=2) as server:
        port = free_port()
        async with (
            raw_dialling(server, port=port, redpoll=False) as one,
            raw_dialling(server, port=port, redpoll=False) as two,
        ):
            for link in (one, two, one, two):
                link.send(link.message(b"x"))
            await inbox.holds(2)
            await until(lambda: server.stats().received == 4, "all messages")
            assert inbox.running == 2
            assert len(server.peers) == 1
            inbox.gate.set()
            await inbox.holds(4)
            assert inbox.most == 2


async def test_slots_hold_across_a_reconnect() -> None:
    """A node that lost its link and is back has no more slots than before, whether it listens or not."""
    for listen in (True, False):
        inbox = Inbox(hold=True)
        async with make(inbox) as server, Proxy(server.address) as proxy, make(listen=listen) as client:
            lost = client.send(Message(b"first", proxy.address))
            await inbox.holds(1)
            await proxy.cut()
            with pytest.raises(NotConfirmed):
                await within(lost)
            second = client.send(Message(b"second", proxy.address))
            await until(lambda: server.stats().received == 2, "the second message")
            await turns()
            assert inbox.begun == [b"first"]
            inbox.gate.set()
            await within(second)
            assert inbox.most == 1


# Lost links


async def test_in_flight_is_not_confirmed_and_queued_is_sent_later() -> None:
    """When a link is lost what was sent on it is not confirmed; what was not goes over the next one."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=2) as server, Proxy(server.address) as proxy, make() as client:
        futures = [client.send(Message(bytes([n]), proxy.address)) for n in range(5)]
        await inbox.holds(1)
        await until(lambda: client.stats().in_flight == 2, "a full window")
        assert client.stats().queued == 3
        await proxy.cut()
        for future in futures[:2]:
            with pytest.raises(NotConfirmed, match="was sent, but not confirmed: lost the peer") as caught:
                await within(future)
            assert isinstance(caught.value.__cause__, PeerLost)
        inbox.gate.set()
        await within(asyncio.gather(*futures[2:]))
        assert client.stats().reconnects == 1
    assert Counter(inbox.begun)[bytes([0])] == 1
    assert inbox.begun[-3:] == [bytes([2]), bytes([3]), bytes([4])]


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("moment", ["while it is handled", "after it was handled"])
async def test_retry_is_handled_once(moment: str, listen: bool) -> None:
    """A message that is sent again because its link was lost is handled once, whether or not it had been."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, Proxy(server.address) as proxy, make(listen=listen) as client:
        future = client.send(Message(b"once", proxy.address), retry=3)
        await inbox.holds(1)
        proxy.answers.clear()
        if moment == "after it was handled":
            inbox.gate.set()
            await until(lambda: inbox.ended, "its end")
            await turns()
        await proxy.cut()
        await until(lambda: server.stats().connections == 0 or server.stats().reconnects, "the loss")
        proxy.answers.set()
        inbox.gate.set()
        await within(future)
    assert inbox.begun == [b"once"]
    assert client.stats().reconnects == 1


async def test_retry_runs_out() -> None:
    """A message is sent again as often as was asked for, and then not confirmed."""
    async with raw_listener() as listener, make() as client:
        future = client.send(Message(b"x", f"127.0.0.1:{listener.port}"), retry=2)
        kinds = []
        for _ in range(3):
            async with raw_accepting(listener) as link:
                kinds.append((await link.read_frame()).kind & ~METADATA)
        with pytest.raises(NotConfirmed):
            await within(future)
        assert kinds == [REQ_ACK, REQ_ACK | 0x08, REQ_ACK | 0x08]


async def test_a_frozen_peer_does_not_slow_another() -> None:
    """While one peer takes nothing any more, messages to others go on, small and large, and so do theirs."""
    inbox = Inbox()
    big = bytes(1 << 20)
    async with raw_listener() as listener, make(inbox) as server, make(Inbox(), keepalive=None, timeout=None) as node:
        stuck = [node.send(Message(big, f"127.0.0.1:{listener.port}"), acknowledge=False) for _ in range(20)]
        async with raw_accepting(listener) as frozen:
            frozen.shrink_receive_buffer()
            await until(lambda: node.stats().peers, "the link")
            for _ in range(5):
                await within(asyncio.gather(node.send(to(server, big)), node.send(to(server)), server.send(to(node))))
            assert not stuck[-1].done()
        for future in stuck:
            future.cancel()
        await settle(*stuck)
    assert len(inbox.messages) == 10


async def test_a_peer_that_cannot_be_reached_does_not_slow_another() -> None:
    """Messages that wait for one peer hold up none for another."""
    async with make(Inbox()) as server, make() as node:
        waiting = [node.send(Message(b"x", f"127.0.0.1:{free_port()}"), timeout=None) for _ in range(5)]
        await within(asyncio.gather(*(node.send(to(server)) for _ in range(50))))
        assert not any(future.done() for future in waiting)
        for future in waiting:
            future.cancel()


# Limits


async def test_connections_are_bounded() -> None:
    """At max_connections a stranger is closed unread; when one is gone there is room again."""
    async with make(Inbox(), max_connections=2) as server:
        async with raw_dialling(server, port=0), raw_dialling(server, port=0, identity=b"J" * 16):
            third = await RawLink.dial("127.0.0.1", server.address.port)
            with pytest.raises(DisconnectedError) as caught:
                await third.read(1)
            assert caught.value.read == b""
            third.close()
            assert server.stats().connections == 2
        await until(lambda: server.stats().connections == 0, "their end")
        async with make() as client:
            await within(client.send(to(server)))


async def test_connections_from_one_host_are_bounded(tmp_path: Path) -> None:
    """At max_connections_per_host others still come in; those that this node dialled do not count."""
    options: dict[str, Any] = {"host": ("127.0.0.1", f"unix:{tmp_path / 's'}"), "max_connections_per_host": 1}
    async with make(Inbox(), **options) as server, make(Inbox()) as other, make(listen=False) as client:
        await within(server.send(to(other)))
        async with raw_dialling(server, port=0):
            second = await RawLink.dial("127.0.0.1", server.address.port)
            with pytest.raises(DisconnectedError):
                await second.read(1)
            second.close()
            await within(client.send(Message(b"x", server.listening[1])))


async def test_connections_count_from_the_moment_they_are_accepted() -> None:
    """A burst of strangers gets no more links than there may be, however many come in one turn of the loop."""
    async with make(Inbox(), max_connections=5) as server:
        links = [await RawLink.dial("127.0.0.1", server.address.port) for _ in range(20)]
        served = 0
        for link in links:
            try:
                await link.read(45)
                served += 1
            except DisconnectedError:
                pass
        assert served == server.stats().connections == 5
        for link in links:
            link.close()


# Memory


async def one_shot(server: Node[Any], number: int, *, redpoll: bool) -> None:
    """A client that sends one message, waits for its acknowledgement, and is gone."""
    identity = number.to_bytes(16, "big")
    async with raw_dialling(server, port=0, identity=identity, redpoll=redpoll) as link:
        link.send(link.message(b"x"))
        await link.read_frame()


def kept(server: Node[Any]) -> int:
    """How many things the node's books hold."""
    peers = server._peers
    return sum(
        len(each)
        for each in (
            peers.routes,
            peers.routes.table,
            peers.connections,
            peers.timers,
            peers.connection_limits,
            peers.recent,
        )
    )


async def test_one_shot_clients_leave_nothing_behind() -> None:
    """Clients that come once are forgotten when they are gone; what they did stays in the sums."""
    count = 150
    async with make(Inbox()) as server:
        for number in range(count):
            await one_shot(server, number, redpoll=False)
        async with make(listen=False) as client:
            await within(client.send(to(server)))
        await until(lambda: not kept(server), "their end")
        assert not server.peers
        stats = server.stats()
        assert (stats.received, dict(stats.peers)) == (count + 1, {})


@pytest.mark.nightly
async def test_ten_thousand_one_shot_clients() -> None:
    """Ten thousand clients that come once leave no more objects behind than ten."""

    async def serve(count: int) -> int:
        for _ in range(count):
            client: Node[bytes] = make(listen=False)
            async with client:
                await within(client.send(to(server)))
        await until(lambda: not kept(server), "their end")
        gc.collect()
        return len(gc.get_objects())

    async with make(lambda message: None, host="inproc:server") as server:
        before = await serve(10)
        after = await serve(10_000)
        assert after - before < 1_000
        assert server.stats().received == 10_010


async def test_killed_clients_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redpoll clients that vanish without a goodbye are remembered, some of them, and for a time."""
    monkeypatch.setattr("redpoll.node.peers.REMEMBERED_FOR", 0.3)
    async with make(Inbox(), max_connections=5) as server:
        for number in range(8):
            await one_shot(server, number, redpoll=True)
        await until(lambda: server.stats().connections == 0, "their end")
        assert len(server.peers) == 5
        assert not any(peer.connected for peer in server.peers)
        await until(lambda: not kept(server), "the end of their time")
        assert server.stats().received == 8


async def test_peers_of_sends_that_never_were_are_forgotten() -> None:
    """A send that fails before it is queued leaves no peer behind."""
    async with make(serializer="json", max_message_size=100) as node:
        for data in (object(), "x" * 200):
            with pytest.raises(RedpollError):
                node.send(Message(data, "127.0.0.1:2998"))
        assert not node.peers


async def test_a_late_announcement_is_known() -> None:
    """A peer that announces itself after the time for it is known as a redpoll node from then on."""
    inbox = Inbox()
    async with make(inbox) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        link.write(handshake(4000, b"I" * 16))
        await until(lambda: server.peers, "the peer")
        assert not server.peers[0].redpoll
        link.write(announcement().encode())
        await until(lambda: server.peers[0].redpoll, "its announcement")
        link.send(link.message(b"x"))
        await inbox.holds(1)
        link.close()
