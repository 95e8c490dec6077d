"""A node that is dialled at two addresses, which are two peers to who dials and one to it: nothing is lost or held up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import TLS, Message, NotConfirmed
from redpoll.testing import FaultProxy
from redpoll.testing.certificates import Certificates
from tests.interop.raw import Frame, raw_listener
from tests.node.resuming import peers_of
from tests.node.support import Inbox, elapse, make, raw_accepting, raw_dialling, until, within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

IDENTITY = b"I" * 16
GOODBYE, PING, PONG, SESSION = 0x1C, 0x0C, 0x14, 0x3C

HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize("identity", [b"a" * 16, b"z" * 16])
@pytest.mark.parametrize("listens", [True, False])
async def test_all_is_handled_once(identity: bytes, listens: bool) -> None:
    """Whatever link the node leaves because another one is enough, what crosses that is handled, once and in time."""
    inbox = Inbox(answer=b"yes")
    options: dict[str, Any] = {"encryption": False, "timeout": 2.0}
    if not listens:
        options["listen"] = False
    async with (
        make(inbox, host=HOSTS, encryption=False, identity=b"m" * 16) as server,
        make(Inbox(), identity=identity, **options) as client,
    ):
        for number in range(20):
            for host in HOSTS:
                await within(client.send(Message(b"%d %s" % (number, host.encode()), f"{host}:{server.address.port}")))
        futures = [
            client.request(Message(b"%d" % number, f"{HOSTS[number % 2]}:{server.address.port}"))
            for number in range(200)
        ]
        assert {answer.data for answer in await within(asyncio.gather(*futures))} == {b"yes"}
        assert len(inbox.begun) == len(set(inbox.begun)) == 240
        await until(lambda: len(server.peers) == 1, "one peer")
        assert server.stats().conflicts == client.stats().conflicts == 0
        assert (server.stats().errors, client.stats().errors) == (0, 0)
        assert server.stats().reconnects <= 3


@pytest.mark.parametrize("encrypted", [False, True])
async def test_no_link_breaks_where_a_session_goes_on(encrypted: bool, redpoll_pki: Certificates) -> None:
    """A node whose messages are to survive its links loses none by dialling a node at another address too."""
    inbox = Inbox(answer=b"yes")
    options: dict[str, Any] = {"encryption": encrypted}
    if encrypted:
        options["tls"] = TLS(certificate=redpoll_pki.issue("node", names=["localhost", *HOSTS]))
    async with (
        make(inbox, host=HOSTS, slots=4, **options) as server,
        make(listen=False, resume=30.0, **options) as client,
    ):
        for _ in range(10):
            futures = [client.request(Message(b"x", f"{host}:{server.address.port}")) for host in HOSTS * 2]
            assert [answer.data for answer in await within(asyncio.gather(*futures))] == [b"yes"] * 4
        assert len(inbox.begun) == 40
        assert (server.stats().errors, client.stats().errors, client.stats().resent) == (0, 0, 0)
        (peer,) = peers_of(server).routes
        assert peer.session.seconds == 30


@pytest.mark.parametrize("identity", [b"a" * 16, b"z" * 16])
async def test_who_dialled_and_is_dialled_elsewhere(identity: bytes) -> None:
    """A node that has dialled this one from the address that it announces can be sent to by another of its addresses."""
    inbox, back = Inbox(answer=b"yes"), Inbox()
    async with (
        make(inbox, host=HOSTS, encryption=False, identity=b"m" * 16) as server,
        make(back, encryption=False, identity=identity) as client,
    ):
        await within(server.send(Message(b"first", client.address)))
        mapped = f"{HOSTS[1]}:{server.address.port}"
        for number in range(20):
            await within(client.send(Message(b"%d" % number, mapped), timeout=2.0))
        assert (await within(client.request(Message(b"20", mapped), timeout=2.0))).data == b"yes"
        await within(server.send(Message(b"last", client.address), timeout=2.0))
        assert inbox.begun == [b"%d" % number for number in range(21)]
        assert back.begun == [b"first", b"last"]
        assert (server.stats().reconnects, client.stats().reconnects) <= (2, 2)


async def test_what_was_in_flight_goes_on_where_the_node_dialled() -> None:
    """What a lost link had in flight is confirmed over the link that its node made meanwhile, and so are replies to it."""
    inbox = Inbox(hold=True)
    async with (
        make(inbox, identity=b"m" * 16, resume=30.0) as server,
        FaultProxy(server.address) as proxy,
        make(identity=b"z" * 16, resume=30.0, timeout=None) as client,
    ):
        sending = client.send(Message(b"once", proxy.address))
        await inbox.holds(1)
        first = server.send(inbox.messages[0].reply(b"first"))
        received = await within(client.receive())
        received.release()
        await within(first)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not (server.stats().connections or client.stats().connections), "the cut")
        replying = client.send(received.reply(b"reply"))
        second = server.send(Message(b"second", client.address))
        (await within(client.receive())).release()
        await within(second)
        assert not sending.done()
        proxy.admit()
        inbox.gate.set()
        await within(asyncio.gather(sending, replying))
        assert inbox.begun == [b"once", b"reply"]


@pytest.mark.parametrize("proof", [None, bytes(16)])
async def test_who_came_in_as_another_is_given_nothing(proof: bytes | None) -> None:
    """Who dials a node and says to be the run of one that it dials elsewhere gets nothing of that one's without proof."""
    async with make(identity=b"z" * 16) as node, raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        async with raw_dialling(node, port=1, identity=IDENTITY) as false:
            opening = node.send(Message(b"1", address), acknowledge=False)
            async with raw_accepting(listener, identity=IDENTITY) as true:
                await within(opening)
                assert (await within(true.read_frame())).data == b"1"
                asked = await within(true.read_frame())
                assert (asked.kind, asked.data[:1], len(asked.data)) == (SESSION, b"\x01", 17)
                if proof is not None:
                    false.send(Frame(bytes(16), 0, SESSION, data=b"\x02" + proof))
                false.send(Frame(bytes(16), 5, PING))
                assert (await within(false.read_frame())).kind == PONG
                await within(node.send(Message(b"2", address), acknowledge=False))
                assert (await within(true.read_frame())).data == b"2"


async def test_who_says_to_be_another_is_given_nothing() -> None:
    """Who is dialled and says to be the run of a node that is linked elsewhere gets what was for its address, no more."""
    async with make() as node, raw_listener() as first, raw_listener() as second:
        there, elsewhere = (f"127.0.0.1:{listener.port}" for listener in (first, second))
        opening = node.send(Message(b"1", there), acknowledge=False)
        async with raw_accepting(first, identity=IDENTITY) as true:
            await within(opening)
            assert (await within(true.read_frame())).data == b"1"
            opening = node.send(Message(b"2", elsewhere), acknowledge=False)
            async with raw_accepting(second, identity=IDENTITY) as false:
                await within(opening)
                assert (await within(false.read_frame())).data == b"2"
                goodbye = await within(false.read_frame())
                assert (goodbye.kind, goodbye.data) == (GOODBYE, b"\x02")
                for address in (there, elsewhere):
                    await within(node.send(Message(address.encode(), address), acknowledge=False))
                    assert (await within(true.read_frame())).data == address.encode()
                false.send(Frame(bytes(16), 5, PING))
                assert (await within(false.read_frame())).kind == PONG


async def test_mapped_ports_while_links_are_cut() -> None:
    """Where nodes know each other by mapped ports alone, cuts leave some sends unconfirmed, and double none."""
    begun: list[bytes] = []

    async def slow(message: Message[Any]) -> None:
        begun.append(bytes(message.data))
        await elapse(0.005)

    async with make(slow, resume=30.0, slots=8) as one, make(slow, resume=30.0, slots=8) as two:
        async with FaultProxy(str(one.address)) as to_one, FaultProxy(str(two.address)) as to_two:
            sends: dict[bytes, asyncio.Future[Any]] = {}
            for turn in range(60):
                for sender, proxy in ((one, to_two), (two, to_one)):
                    data = b"%d to %s" % (turn, str(proxy.address).encode())
                    sends[data] = asyncio.ensure_future(sender.send(Message(data, proxy.address), timeout=20.0))
                if turn % 6 == 5:
                    (to_one if turn % 12 == 5 else to_two).cut("rst")
                await asyncio.sleep(0)
            ends = await asyncio.wait_for(asyncio.gather(*sends.values(), return_exceptions=True), 30.0)
            assert len(begun) == len(set(begun))
            for data, error in zip(sends, ends, strict=True):
                if error is None:
                    assert data in begun
                else:
                    assert isinstance(error, NotConfirmed)


async def test_certificates_tell_that_mapped_ports_are_of_one_node(redpoll_pki: Certificates) -> None:
    """A node whose key is known is the same peer at its mapped port, also where it was dialled while its link was lost."""
    here, there = Inbox(), Inbox()
    options: dict[str, Any] = {"resume": 30.0, "timeout": None, "encryption": True}
    options["tls"] = TLS(certificate=redpoll_pki.issue("node", names=["localhost", *HOSTS]))
    async with (
        make(here, identity=b"z" * 16, **options) as one,
        make(there, identity=b"a" * 16, public_port=free_port(), **options) as two,
        FaultProxy(one.address) as to_one,
        FaultProxy(f"127.0.0.1:{two.listening[0].port}") as to_two,
    ):
        await within(two.send(Message(b"1", to_one.address)))
        to_one.refuse()
        to_one.cut()
        await until(lambda: not (one.stats().connections or two.stats().connections), "the cut")
        await within(one.send(Message(b"2", to_two.address)))
        assert len(one.peers) == 1
        # It is dialled again where it was reached: nothing listens at the port that it announces.
        to_two.cut()
        await until(lambda: one.stats().resumed == 2, "the next link")
        to_two.refuse()
        to_two.cut()
        await until(lambda: not (one.stats().connections or two.stats().connections), "the other cut")
        to_one.admit()
        await within(two.send(Message(b"3", to_one.address)))
        to_two.admit()
        # The link that is up serves both: the other end would leave another one.
        await within(one.send(Message(b"4", to_two.address)))
        assert (here.begun, there.begun) == ([b"1", b"3"], [b"2", b"4"])
        assert len(one.peers) == len(two.peers) == 1
