"""`authorize`: who is asked about, what is done meanwhile, and what both ends learn of a no."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from redpoll import TLS, Message, Node, NotSent, PeerInfo, PeerLost
from redpoll.errors import NotAuthorized
from redpoll.node import admission as admission_module
from redpoll.node.authorization import Authorization
from redpoll.testing.certificates import Certificates
from tests.interop.raw import ACK, REQ_ACK, Frame, RawLink, handshake, raw_listener
from tests.node.support import PATIENCE, Inbox, announcement, make, raw_dialling, settle, to, turns, until, within

pytestmark = pytest.mark.asyncio

PING, PONG, GOODBYE, SESSION = 0x0C, 0x14, 0x1C, 0x3C


class Gate:
    """An `authorize` that keeps what it is asked, and answers as told, in time or in spite of its cancellation."""

    def __init__(self, answer: bool = True, *, hold: bool = False) -> None:
        self.asked: list[PeerInfo] = []
        self.cancelled = 0
        self.answer = answer
        self.gate = asyncio.Event()
        if not hold:
            self.gate.set()

    def at_once(self, peer: PeerInfo) -> bool:
        self.asked.append(peer)
        return self.answer

    async def later(self, peer: PeerInfo) -> bool:
        self.asked.append(peer)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.answer

    async def stubborn(self, peer: PeerInfo) -> bool:
        try:
            return await self.later(peer)
        except asyncio.CancelledError:
            return self.answer

    async def twice(self, peer: PeerInfo) -> bool:
        try:
            return await self.later(peer)
        except asyncio.CancelledError:
            return await self.later(peer)


async def refusal(sending: asyncio.Future[Any]) -> NotAuthorized:
    """Why a send failed that was not begun."""
    with pytest.raises(NotSent) as caught:
        await within(sending)
    assert not caught.value.sent
    assert isinstance(caught.value.__cause__, NotAuthorized)
    return caught.value.__cause__


# Yes


@pytest.mark.parametrize("kind", ["at_once", "later"])
async def test_each_link_is_asked_about_once(kind: str) -> None:
    """Both ends ask about a link once, with the address and the identity of who is there, and then it works as any."""
    inbox, ours, theirs = Inbox(answer=b"yes"), Gate(), Gate()
    async with (
        make(inbox, authorize=getattr(theirs, kind)) as server,
        make(authorize=getattr(ours, kind)) as client,
    ):
        await within(asyncio.gather(*(client.send(to(server, b"%d" % n)) for n in range(20))))
        assert (await within(client.request(to(server)))).data == b"yes"
        assert inbox.begun == [*(b"%d" % n for n in range(20)), b"x"]
        assert ours.asked == [PeerInfo(server.address, server.identity, False, True)]
        assert theirs.asked == [PeerInfo(client.address, client.identity, False, True)]
        assert server.stats().turned_away.unauthorized == client.stats().turned_away.unauthorized == 0


async def test_by_certificate(redpoll_pki: Certificates) -> None:
    """The certificate that was shown is there to decide by: its names, and its fingerprint."""
    inbox = Inbox()
    seen: list[PeerInfo] = []

    def only_workers(peer: PeerInfo) -> bool:
        seen.append(peer)
        return peer.certificate is not None and peer.certificate.name == "worker"

    def tls(name: str) -> TLS:
        return TLS(certificate=redpoll_pki.issue(name))

    async with make(inbox, encryption=True, tls=tls("server"), authorize=only_workers) as server:
        for name in ("worker", "guest"):
            async with make(encryption=True, tls=tls(name), listen=False) as client:
                sending = client.send(to(server, name.encode()))
                if name == "worker":
                    await within(sending)
                else:
                    assert "the peer rejected this node" in str(await refusal(sending))
        assert inbox.begun == [b"worker"]
        assert [peer.certificate.subject for peer in seen if peer.certificate] == ["CN=worker", "CN=guest"]
        assert server.stats().turned_away.unauthorized == 1


async def test_what_comes_waits() -> None:
    """Until there is an answer nothing is handled, sent, or read beyond what one read brings; then all goes on in order."""
    inbox, gate = Inbox(), Gate(hold=True)
    async with make(inbox, authorize=gate.later, window=4) as server, make(timeout=None, window=4) as client:
        large = bytes(3_000_000)
        futures = [client.send(to(server, data)) for data in (b"1", large, b"2", *[b"x"] * 20)]
        await until(lambda: gate.asked, "the question")
        back = server.send(to(client), timeout=None)
        await turns()
        assert not inbox.begun
        assert server.stats().received == 0
        assert server.stats().bytes_received < 1_000_000
        gate.gate.set()
        await within(asyncio.gather(*futures))
        assert inbox.begun[:2] == [b"1", b"2"]
        assert sorted(map(len, inbox.begun)) == [1] * 22 + [3_000_000]
        back.cancel()


async def test_both_dial_at_once() -> None:
    """Two nodes that dial each other, and take their time over it, find that they are one peer each."""
    one, two, ours, theirs = Inbox(), Inbox(), Gate(hold=True), Gate(hold=True)
    async with make(one, authorize=ours.later) as first, make(two, authorize=theirs.later) as second:
        futures = [first.send(to(second)), second.send(to(first))]
        await until(lambda: len(ours.asked) == len(theirs.asked) == 2, "the questions")
        ours.gate.set()
        await turns()
        theirs.gate.set()
        await within(asyncio.gather(*futures))
        await until(lambda: first.stats().connections == second.stats().connections == 1, "one link")
        assert (len(first.peers), len(second.peers)) == (1, 1)
        assert first.stats().conflicts == second.stats().conflicts == 0


@pytest.mark.parametrize("kind", ["at_once", "later"])
async def test_libchirp(kind: str) -> None:
    """Libchirp is asked about as well; what it sent meanwhile is handled when it is let in."""
    inbox, gate = Inbox(), Gate(hold=True)
    async with make(inbox, authorize=getattr(gate, kind)) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        link.write(handshake(4000, b"l" * 16))
        message = link.message(b"x")
        link.send(message)
        await until(lambda: gate.asked, "the question")
        if kind == "later":
            await turns()
            assert not inbox.begun
        gate.gate.set()
        await inbox.holds(1)
        assert not gate.asked[0].redpoll
        await within(link.read(18 + 27))
        assert (await within(link.read_frame())).identity == message.identity
        link.close()


async def test_no_memory_when_it_is_let_in() -> None:
    """A large message of libchirp's that came meanwhile, and finds no memory then, waits for it, and is handled."""
    inbox, gate = Inbox(), Gate(hold=True)

    async def authorize(peer: PeerInfo) -> bool:
        return peer.redpoll or await gate.later(peer)

    async with (
        make(inbox, authorize=authorize, memory_limit=200_000) as server,
        raw_dialling(server, port=4001) as filling,
    ):
        await filling.write_all(filling.message((900_000).to_bytes(8, "big") + bytes(300_000), kind=0x81).encode())
        await until(lambda: server.stats().memory_held >= 300_000, "a full memory")
        link = await RawLink.dial("127.0.0.1", server.address.port)
        message = link.message(bytes(100_000)).encode()
        link.write(handshake(4000, b"l" * 16) + message[:1000])
        await until(lambda: gate.asked, "the question")
        gate.gate.set()
        await until(lambda: server.stats().turned_away.memory_waits, "a link that waits")
        filling.close()
        await link.write_all(message[1000:])
        await inbox.holds(1)
        link.close()


# No


@pytest.mark.parametrize("kind", ["at_once", "later"])
async def test_who_is_not_let_in_is_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A node that is not let in learns it at once, and dials no more; nothing of it was handled; it is counted and logged."""
    inbox, gate = Inbox(), Gate(False)
    async with make(inbox, authorize=getattr(gate, kind)) as server, make(timeout=None, listen=False) as client:
        error = await refusal(client.send(to(server)))
        assert str(error) == (
            f"not authorized with {server.address}: the peer rejected this node"
            " (its authorize= decides: see the log of the peer)"
        )
        futures: list[asyncio.Future[Any]] = [client.send(to(server), retry=3), client.request(to(server))]
        for future in futures:
            await refusal(future)
        assert not inbox.begun
        assert server.stats().received == 0
        await until(lambda: server.stats().connections == client.stats().connections == 0, "the end of the links")
        assert len(gate.asked) == server.stats().turned_away.unauthorized <= 3
        assert not server.peers
    record = caplog.records[0]
    assert (record.levelno, record.name) == (logging.WARNING, "redpoll.node")
    assert "authorize returned False" in record.getMessage()


@pytest.mark.parametrize("kind", ["at_once", "later"])
@pytest.mark.parametrize("said", [1, "not listed", {"name": "alice"}, None, 0])
async def test_true_alone_lets_a_peer_in(kind: str, said: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is no bool is a refusal, however truthy; error and log name its type, and the log no value."""
    inbox, gate = Inbox(), Gate(said)
    text = f"authorize returned {type(said).__name__}: only True admits a peer"
    async with make(inbox) as server, make(authorize=getattr(gate, kind), listen=False) as client:
        error = await refusal(client.send(to(server), timeout=None))
        assert str(error) == f"not authorized with {server.address}: {text}"
        assert client.stats().turned_away.unauthorized == 1
    assert not inbox.begun
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [text]


@pytest.mark.parametrize("kind", ["at_once", "later"])
async def test_who_is_dialled_and_not_let_in(kind: str) -> None:
    """Who is dialled is asked about too: send, ready and check fail with what `authorize` here said."""
    inbox, gate = Inbox(), Gate(False)
    async with make(inbox) as server, make(authorize=getattr(gate, kind), listen=False) as client:
        error = await refusal(client.send(to(server), timeout=None))
        assert str(error) == f"not authorized with {server.address}: authorize returned False"
        for attempt in (client.ready, client.check):
            with pytest.raises(NotAuthorized):
                await within(attempt(server.address, timeout=None))
        assert len(gate.asked) == client.stats().turned_away.unauthorized == 3
    assert not inbox.begun


async def test_a_mind_may_be_changed() -> None:
    """What was said holds for one link: the next one is asked about again."""
    inbox, gate = Inbox(), Gate(False)
    async with make(inbox, authorize=gate.at_once) as server, make(listen=False) as client:
        await refusal(client.send(to(server, b"early")))
        gate.answer = True
        await within(client.send(to(server, b"late")))
        gate.answer = False
        await within(client.send(to(server, b"as before")))
    assert inbox.begun == [b"late", b"as before"]


async def test_an_exception_is_a_no(caplog: pytest.LogCaptureFixture) -> None:
    """An `authorize` that raises lets nobody in; its traceback is logged, at most once a second."""

    def raising(peer: PeerInfo) -> bool:
        raise KeyError(peer.identity)

    def cancelling(peer: PeerInfo) -> bool:
        raise asyncio.CancelledError

    async def raising_later(peer: PeerInfo) -> bool:
        raise TimeoutError(peer.identity)

    for authorize in (raising, cancelling, raising_later):
        caplog.clear()
        async with make(Inbox(), authorize=authorize) as server, make(listen=False) as client:
            for _ in range(3):
                await refusal(client.send(to(server)))
            assert server.stats().turned_away.unauthorized == 3
        tracebacks = [record for record in caplog.records if record.exc_info]
        assert 1 <= len(tracebacks) <= 2
        assert tracebacks[0].getMessage() == "authorize raised, so the link is rejected"


async def test_no_answer_in_time_is_a_no() -> None:
    """An `authorize` has `handshake_timeout`; it is cancelled then, and the link is not let in."""
    gate = Gate(hold=True)
    async with make(Inbox(), authorize=gate.later, handshake_timeout=0.1) as server, make(listen=False) as client:
        await refusal(client.send(to(server), timeout=None))
        assert (gate.cancelled, server.stats().turned_away.unauthorized) == (1, 1)


@pytest.mark.parametrize("kind", ["stubborn", "twice"])
async def test_a_late_yes_is_a_no(kind: str) -> None:
    """When its time is over the other end is told no, whether `authorize` then says yes or goes on: it is not waited for."""
    inbox, gate = Inbox(), Gate(hold=True)
    async with (
        make(inbox, authorize=getattr(gate, kind), handshake_timeout=0.1) as server,
        make(listen=False) as client,
    ):
        await refusal(client.send(to(server), timeout=None))
        assert gate.cancelled
        gate.gate.set()
        await until(lambda: server.stats().connections == client.stats().connections == 0, "the end of the link")
        assert not inbox.begun
        assert server.stats().turned_away.unauthorized == 1


async def test_one_that_is_cancelled_is_a_no() -> None:
    """An `authorize` that ends with a cancellation of its own lets nobody in, and who is not let in is told."""

    async def cancelled(peer: PeerInfo) -> bool:
        raise asyncio.CancelledError

    async with make(Inbox(), authorize=cancelled) as server, make(listen=False) as client:
        await refusal(client.send(to(server), timeout=None))
        assert server.stats().turned_away.unauthorized == 1


async def test_libchirp_is_not_let_in() -> None:
    """Libchirp cannot be told: its link is closed, and nothing of it is handled."""
    inbox = Inbox()
    async with make(inbox, authorize=Gate(False).at_once) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        link.write(handshake(4000, b"l" * 16) + Frame(b"m" * 16, 1, REQ_ACK, b"", b"x").encode())
        assert len(await within(link.read_all())) <= 18 + 27
        link.close()
        await until(lambda: server.stats().connections == 0, "the end of the link")
    assert not inbox.begun


async def test_what_is_written_to_who_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets one frame that says so and a goodbye that says that nothing was taken, and is closed if it does not close."""
    monkeypatch.setattr(admission_module, "REJECTION_TIME", 0.1)
    inbox = Inbox()
    async with make(inbox, authorize=Gate(False).at_once) as server, raw_dialling(server, port=4000) as link:
        told, goodbye = await within(link.read_frame()), await within(link.read_frame())
        assert (told.kind, told.data) == (SESSION, b"\x03")
        assert (goodbye.kind, goodbye.data) == (GOODBYE, b"\x01")
        for kind in (0, REQ_ACK):
            link.send(link.message(b"all the same", kind=kind))
        assert ACK not in await within(link.read_all())
        await until(lambda: server.stats().connections == 0, "the end of the link")
    assert not inbox.begun


async def test_who_is_not_let_in_fills_no_memory() -> None:
    """What it goes on to send is neither kept nor counted as held: others would wait for memory that nobody has."""
    size = 1_000_000
    async with make(Inbox(), authorize=Gate(False).at_once) as server, raw_dialling(server, port=4000) as link:
        await within(link.read_frame())
        (connection,) = server._peers.connections
        whole = [link.message(bytes(size), kind=0) for _ in range(4)]
        begun = [link.message((3 * size).to_bytes(8, "big") + bytes(size), kind=kind) for kind in (0x80, 0x80)]
        data = b"".join(frame.encode() for frame in whole + begun)
        before = connection.link.bytes_received
        await link.write_all(data)
        await until(lambda: connection.link.bytes_received == before + len(data), "all of it")
        assert server.stats().memory_held == 0


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_no_in_the_first_bytes(at_once: bool) -> None:
    """Whether it comes with the handshake or behind it: who is not let in sends nothing more, and dials no more."""
    no = Frame(bytes(16), 0, SESSION, b"", b"\x03").encode() + Frame(bytes(16), 0, GOODBYE, b"", b"\x01").encode()
    async with raw_listener() as listener, make(listen=False, timeout=None) as client:
        sending = client.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        link = await listener.accept()
        hello = handshake(listener.port, b"I" * 16) + announcement().encode()
        link.write(hello + no if at_once else hello)
        await link.read(18 + 27)
        if not at_once:
            assert (await within(link.read_frame())).data[-1:] == b"x"
            link.write(no)
        await refusal(sending)
        assert b"x" not in await within(link.read_all())
        link.close()
        assert not await listener.accepts_within(0.1)


# Ends that come first


async def test_gone_before_there_is_an_answer() -> None:
    """When the link ends first nobody is asked any more."""
    gate = Gate(hold=True)
    async with make(Inbox(), authorize=gate.later) as server:
        link = await RawLink.dial("127.0.0.1", server.address.port)
        link.write(handshake(4000, b"l" * 16))
        await until(lambda: gate.asked, "the question")
        for connection in list(server._peers.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await until(lambda: gate.cancelled, "the end of it")
        link.close()
        assert server.stats().turned_away.unauthorized == 0
    async with make(Inbox()) as server, make(authorize=gate.later, listen=False, connect_timeout=0.1) as client:
        async with asyncio.timeout(PATIENCE):
            while len(gate.asked) < 2:
                # Beside a load it may take longer until somebody is asked.
                with pytest.raises(NotSent):
                    await client.send(to(server), dial="once")
        await until(lambda: gate.cancelled == 2, "the end of it")


async def test_gone_at_once() -> None:
    """When the link ends before what was asked has begun, that is never begun, and nothing of it is left."""
    gate = Gate()
    async with make(Inbox()) as server, make(listen=False) as client:

        def authorize(peer: PeerInfo) -> Any:
            asked = gate.later(peer)
            for connection in list(server._peers.connections):
                connection.fail(PeerLost(None, "just now"))
            return asked

        server._peers.admission.authorization = Authorization(
            authorize, asyncio.get_running_loop(), 1.0, server._peers.admission._decided
        )
        future = client.send(to(server), dial="once", timeout=0.5)
        await settle(future)
        assert future.exception() is not None
        assert not server._peers.admission.authorization._tasks


@pytest.mark.parametrize("role", ["dialled", "dialling"])
async def test_a_stop_waits_for_no_answer(role: str) -> None:
    """A node that stops waits for no answer; what came is not taken, and its sender may send it to the next one."""
    inbox, gate, later = Inbox(), Gate(hold=True), Inbox()
    server: Node[Any] = make(inbox, authorize=gate.later if role == "dialled" else None)
    client: Node[Any] = make(authorize=gate.later if role == "dialling" else None, listen=False, timeout=None)
    await server.start()
    await client.start()
    future = client.send(to(server, b"for the next"))
    await until(lambda: gate.asked, "the question")
    address = server.address
    stopping = server if role == "dialled" else client
    await within(stopping.stop(0.2))
    assert gate.cancelled == 1
    assert not inbox.begun
    if role == "dialled":
        async with make(later, port=address.port):
            await within(future)
            assert later.begun == [b"for the next"]
        assert stopping.stats().turned_away.unauthorized == 0
    else:
        with pytest.raises(NotSent):
            await within(future)
    await within(server.stop(0))
    await within(client.stop(0))


async def test_a_message_to_who_is_asked_about() -> None:
    """What is for a peer goes to nobody before they are let in."""
    gate = Gate(hold=True)
    async with make(Inbox(), authorize=gate.later) as server, raw_dialling(server, port=4000) as link:
        await until(lambda: gate.asked, "the question")
        sending = server.send(Message(b"x", "127.0.0.1:4000"), dial="once")
        await settle(sending)
        assert isinstance(sending.exception(), NotSent), "it was dialled, and nobody is there"
        gate.gate.set()
        link.send(Frame(bytes(16), 5, PING))
        assert (await within(link.read_frame())).kind == PONG
