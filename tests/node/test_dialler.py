"""Making links: when, how often, to whom, and what becomes of those who wait."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redpoll import Address, Closed, ConfigError, DialFailed, Expired, Message, NotSent, PeerLost
from redpoll.errors import OtherProtocol
from redpoll.node.dialler import HEAD_START
from redpoll.transport.backoff import SOON
from tests.interop.raw import ACK, Frame, RawLink, RawListener, handshake, raw_listener
from tests.node.support import (
    Inbox,
    announcement,
    make,
    raw_accepting,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.ports import free_port
from tests.transport.test_listen import resolving

pytestmark = pytest.mark.asyncio


def at(listener: RawListener) -> str:
    """Where a bare socket listens."""
    return f"127.0.0.1:{listener.port}"


def confirm(link: RawLink, frame: Frame) -> None:
    """Acknowledge a message as a redpoll node does, by its serial."""
    link.send(Frame(frame.identity, frame.serial, ACK))


class Diallings:
    """Counts how often a node connects, and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def counted(*args: Any, **options: Any) -> Any:
            self.times.append(loop.time())
            return await connect(*args, **options)

        monkeypatch.setattr(loop, "create_connection", counted, raising=False)

    def __len__(self) -> int:
        return len(self.times)


async def test_the_first_send_makes_the_link() -> None:
    """Nobody is dialled before something is to be sent; then one link serves for all, both ways."""
    inbox, back = Inbox(), Inbox()
    async with make(inbox) as server, make(back) as client:
        assert client.stats().connections == 0
        await within(asyncio.gather(*(client.send(to(server)) for _ in range(20))))
        assert (client.stats().connections, server.stats().connections) == (1, 1)
        await within(server.send(to(client)))
        await within(server.send(inbox.messages[0].reply(b"reply")))
        assert back.begun == [b"x", b"reply"]
        assert (client.stats().connections, server.stats().connections) == (1, 1)


async def test_a_listener_that_comes_late_gets_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages wait while nobody listens, and arrive in order soon after somebody does."""
    inbox = Inbox()
    port = free_port()
    diallings = Diallings(monkeypatch)
    async with make() as client:
        futures = [client.send(Message(bytes([n]), f"127.0.0.1:{port}")) for n in range(5)]
        await until(lambda: len(diallings) >= 4, "a few diallings in vain")
        assert client.stats().queued == 5
        async with make(inbox, port=port):
            await within(asyncio.gather(*futures))
    assert inbox.begun == [bytes([n]) for n in range(5)]
    pauses = [later - earlier for earlier, later in zip(diallings.times, diallings.times[1:], strict=False)]
    assert min(pauses) >= 0.009
    assert max(pauses) < SOON + 1


async def test_expired_while_dialling_says_why() -> None:
    """A message whose time is over before there was a link was not sent, and the cause is why there was none."""
    async with make() as client:
        port = free_port()
        with pytest.raises(Expired, match=r"still waiting to be sent after 0\.5 s") as caught:
            await within(client.send(Message(b"x", f"127.0.0.1:{port}"), timeout=0.5))
        assert not caught.value.sent
        assert str(caught.value.__cause__) == f"cannot connect to 127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize("how", ["config", "send", "request"])
async def test_dial_once(how: str) -> None:
    """With dial="once" the first dialling that fails fails the message, with its reason."""
    async with make(dial="once" if how == "config" else "retry") as client:
        message = Message(b"x", f"127.0.0.1:{free_port()}")
        future: asyncio.Future[Any]
        if how == "config":
            future = client.send(message)
        elif how == "send":
            future = client.send(message, dial="once")
        else:
            future = client.request(message, dial="once")
        with pytest.raises(NotSent, match="Connection refused") as caught:
            await within(future)
        assert isinstance(caught.value.__cause__, DialFailed)
        await until(lambda: not client.peers, "the end of the peer")


async def test_once_and_again_side_by_side() -> None:
    """Messages that wait for another dialling are not failed with those that do not."""
    port = free_port()
    inbox = Inbox()
    async with make() as client:
        patient = client.send(Message(b"patient", f"127.0.0.1:{port}"))
        hasty = client.send(Message(b"hasty", f"127.0.0.1:{port}"), dial="once")
        with pytest.raises(NotSent):
            await within(hasty)
        async with make(inbox, port=port):
            await within(patient)
    assert inbox.begun == [b"patient"]


async def test_dialling_ends_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all that waited has expired or was cancelled, dialling ends, and the peer is forgotten."""
    diallings = Diallings(monkeypatch)
    async with make() as client:
        address = f"127.0.0.1:{free_port()}"
        cancelled = client.send(Message(b"x", address))
        expiring = client.send(Message(b"x", address), timeout=0.05)
        await until(lambda: diallings, "a dialling")
        cancelled.cancel()
        await settle(expiring)
        await until(lambda: not client.peers, "the end of the peer")
        count = len(diallings)
        assert not [task for task in asyncio.all_tasks() if "dial" in task.get_name()]
        await turns()
        assert len(diallings) == count


async def test_connect_timeout() -> None:
    """A listener that accepts and says nothing costs one dialling its connect_timeout; then it is dialled again."""
    async with raw_listener() as listener, make(connect_timeout=0.3, handshake_timeout=60) as client:
        future = client.send(Message(b"x", at(listener)), timeout=None)
        silent = await listener.accept()
        async with raw_accepting(listener) as link:
            confirm(link, await link.read_frame())
            await within(future)
        silent.close()


async def test_connect_timeout_is_told() -> None:
    """What the dialling ended with is what the message fails with."""
    async with raw_listener() as listener, make(connect_timeout=0.05) as client:
        future = client.send(Message(b"x", at(listener)), dial="once")
        silent = await listener.accept()
        with pytest.raises(NotSent, match=r"cannot connect: no link within 0\.05 s"):
            await within(future)
        assert await silent.read_all()
        silent.close()


@pytest.mark.parametrize(("said", "name"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"), (b"SSH-2.0-x\r\n", "SSH")])
async def test_another_protocol(said: bytes, name: str) -> None:
    """What is no node at all fails sends and `ready` at once, however long their time, and says what it is."""
    async with raw_listener() as listener, make() as client:
        where = at(listener)
        detail = f"the peer speaks {name} (is the address right?)"
        for call in (client.send, client.request):
            future = call(Message(b"x", where), timeout=None)
            link = await listener.accept()
            link.write(said)
            with pytest.raises(NotSent) as caught:
                await within(future)
            assert str(caught.value) == f"message to {where} was not sent: protocol error: {detail}"
            assert isinstance(caught.value.__cause__, OtherProtocol)
            link.close()
        waiting = asyncio.ensure_future(client.ready(where, timeout=None))
        link = await listener.accept()
        link.write(said)
        with pytest.raises(OtherProtocol) as wrong:
            await within(waiting)
        assert str(wrong.value) == f"protocol error with {where}: {detail}"
        link.close()


async def test_silence_is_told() -> None:
    """A message that expired while something took the connection, and was silent, has that as its cause."""
    async with raw_listener() as listener, make() as client:
        future = client.send(Message(b"x", at(listener)), timeout=0.3)
        silent = await listener.accept()
        with pytest.raises(Expired) as caught:
            await within(future)
        cause = f"cannot connect to {at(listener)}: it accepts connections, but sent no handshake"
        assert str(caught.value.__cause__) == cause
        silent.close()


async def test_handshake_timeout_of_who_is_dialled() -> None:
    """Who is dialled and does not say who it is in time is closed, and that is why."""
    async with raw_listener() as listener, make(handshake_timeout=0.05) as client:
        future = client.send(Message(b"x", at(listener)), dial="once")
        silent = await listener.accept()
        with pytest.raises(NotSent, match=r"no handshake within 0\.05 s"):
            await within(future)
        silent.close()


@pytest.mark.parametrize("said", [b"", handshake(7, b"I" * 16)[:17]], ids=["nothing", "a part"])
async def test_who_is_dialled_closes_before_its_handshake(said: bytes) -> None:
    """A connection that ends before the handshake is there is a dialling that failed."""
    async with raw_listener() as listener, make() as client:
        future = client.send(Message(b"x", at(listener)), dial="once")
        link = await listener.accept()
        if said:
            link.write(said)
        await link.read(18)
        link.close()
        with pytest.raises(NotSent, match=r"cannot connect: lost the peer: .*") as caught:
            await within(future)
        assert isinstance(caught.value.__cause__, DialFailed)


async def test_who_closes_at_once_is_not_dialled_as_fast_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that shakes hands and closes is dialled with growing pauses, and messages wait for one that stays."""
    diallings = Diallings(monkeypatch)
    async with raw_listener() as listener, make(acknowledge=False) as client:
        future = client.send(Message(b"x", at(listener)), retry=100, acknowledge=True)
        for _ in range(5):
            async with raw_accepting(listener, redpoll=True):
                pass
        async with raw_accepting(listener) as link:
            confirm(link, await link.read_frame())
            await within(future)
    pauses = [later - earlier for earlier, later in zip(diallings.times, diallings.times[1:], strict=False)]
    assert sum(pauses[1:]) >= 0.09, pauses


async def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address of a name is tried until one gives a link; the last failure is told if none does."""
    inbox = Inbox()
    async with make(inbox) as server, make() as client:
        resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
        monkeypatch.setattr("redpoll.node.dialler.is_encrypted", lambda *_: False)
        await within(client.send(Message(b"x", f"some-name:{server.address.port}")))
        resolving(monkeypatch, "127.0.0.2", "127.0.0.3")
        with pytest.raises(NotSent, match=r"cannot connect to 127\.0\.0\.3:\d+: Connection refused"):
            await within(client.send(Message(b"x", f"other-name:{server.address.port}"), dial="once"))
        resolving(monkeypatch)
        with pytest.raises(NotSent, match="the name resolves to no address"):
            await within(client.send(Message(b"x", f"empty-name:{server.address.port}"), dial="once"))
    assert inbox.begun == [b"x"]


HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@contextlib.contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """An address where connecting hangs: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield


@pytest.fixture
def plain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let names lead to links without TLS."""
    monkeypatch.setattr("redpoll.node.dialler.is_encrypted", lambda *_: False)


@pytest.mark.usefixtures("plain_names")
async def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first address of a name is a black hole, the next one is tried beside it, and nothing is left of it."""
    inbox = Inbox()
    diallings = Diallings(monkeypatch)
    async with make(inbox) as server, make(connect_timeout=60) as client:
        resolving(monkeypatch, "127.0.0.2", "127.0.0.3", "127.0.0.1")
        with black_hole("127.0.0.2", server.address.port), black_hole("127.0.0.3", server.address.port):
            await within(client.send(Message(b"x", f"some-name:{server.address.port}")))
        await until(
            lambda: not [task for task in asyncio.all_tasks() if "dial" in task.get_name()], "the end of dialling"
        )
        assert client.stats().connections == 1
    first, second, third = diallings.times
    assert min(second - first, third - second) >= HEAD_START - 0.01
    assert inbox.begun == [b"x"]


@pytest.mark.usefixtures("plain_names")
async def test_an_address_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one that refuses the next one is tried at once."""
    monkeypatch.setattr("redpoll.node.dialler.HEAD_START", 60.0)
    async with make(Inbox()) as server, make() as client:
        resolving(monkeypatch, "127.0.0.2", "127.0.0.3", "127.0.0.1")
        await within(client.send(Message(b"x", f"some-name:{server.address.port}")))


@pytest.mark.usefixtures("plain_names")
async def test_all_addresses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several answer, one link is made."""
    monkeypatch.setattr("redpoll.node.dialler.HEAD_START", 0.0)
    inbox = Inbox()
    async with make(inbox, host=HOSTS, encryption=False) as server, make() as client:
        resolving(monkeypatch, "127.0.0.3", "127.0.0.2", "127.0.0.1")
        for port in (server.address.port,) * 3:
            await within(client.send(Message(b"x", f"some-name:{port}")))
        assert client.stats().connections == 1
        await until(lambda: server.stats().connections == 1, "one link")
    assert inbox.begun == [b"x"] * 3


@pytest.mark.usefixtures("plain_names")
@pytest.mark.parametrize("start", [0.0, 60.0])
async def test_an_address_that_is_no_node(monkeypatch: pytest.MonkeyPatch, start: float) -> None:
    """Where the first that is connected does not shake hands, the others are tried, those that were stopped for it too."""
    monkeypatch.setattr("redpoll.node.dialler.HEAD_START", start)
    async with make(Inbox()) as server, make(connect_timeout=0.5) as client:
        with socket.create_server(("127.0.0.2", server.address.port)):
            resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
            await within(client.send(Message(b"x", f"some-name:{server.address.port}")))


@pytest.mark.usefixtures("plain_names")
async def test_no_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last failure is told; and a node that stops meanwhile leaves nothing."""
    port = free_port()
    resolving(monkeypatch, "127.0.0.2", "127.0.0.3")
    with black_hole("127.0.0.2", port), black_hole("127.0.0.3", port):
        async with make(connect_timeout=0.4) as client:
            with pytest.raises(NotSent, match=r"cannot connect to 127\.0\.0\.3:\d+: no link within 0\.4 s"):
                await within(client.send(Message(b"x", f"some-name:{port}"), dial="once"))
            diallings = Diallings(monkeypatch)
            future = client.send(Message(b"x", f"some-name:{port}"))
            await until(lambda: len(diallings) == 2, "both to be dialled")
        with pytest.raises(NotSent):
            await within(future)
        assert not [task for task in asyncio.all_tasks() if "dial" in task.get_name()]


async def test_what_is_new_shortens_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long outage a node is dialled seldom, and soon once there is something new to be sent."""
    rest = []

    def pauses(_: object, first: float = 60.0) -> Iterator[float]:
        rest.append(first)
        return itertools.repeat(first)

    monkeypatch.setattr("redpoll.node.dialler.backoff", pauses)
    inbox = Inbox()
    port = free_port()
    diallings = Diallings(monkeypatch)
    async with make() as client:
        first = client.send(Message(b"1", f"127.0.0.1:{port}"), timeout=None)
        await until(lambda: len(diallings) == 1, "a dialling in vain")
        await turns()
        async with make(inbox, port=port):
            assert not first.done()
            await within(asyncio.gather(client.send(Message(b"2", f"127.0.0.1:{port}")), first))
    assert inbox.begun == [b"1", b"2"]
    assert rest == [60.0, SOON]


async def test_a_name_of_a_peer_that_has_a_link() -> None:
    """A name that stands for a peer with a link leads to that one: no second link is made."""
    async with make(Inbox()) as server, make() as client:
        port = server.address.port
        for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"127.0.0.1:{port}", f"localhost:{port}"):
            await within(client.send(Message(b"x", address)))
        assert client.stats().connections == 1
        assert len(client.peers) == 1


async def test_a_name_first() -> None:
    """After a name was dialled, the address that it stands for leads over the same link."""
    inbox = Inbox()
    async with make(inbox) as server, make(Inbox()) as client:
        port = server.address.port
        for address in (f"localhost:{port}", f"127.0.0.1:{port}"):
            await within(client.send(Message(b"x", address)))
        await within(server.send(to(client)))
        await within(server.send(Message(b"x", f"localhost:{client.address.port}")))
        assert (client.stats().connections, server.stats().connections) == (1, 1)
        assert (client.stats().conflicts, server.stats().conflicts) == (0, 0)


async def test_unknown_name() -> None:
    """A name that cannot be resolved is dialled again, and told as why in the end."""
    async with make() as client:
        with pytest.raises(Expired) as caught:
            await within(client.send(Message(b"x", "nowhere.invalid:7"), timeout=0.2))
        if caught.value.__cause__ is not None:  # a resolver may take longer than that
            assert "the name cannot be resolved" in str(caught.value.__cause__)


async def test_connect_timeout_covers_looking_a_name_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that does not answer costs one dialling its connect_timeout, and is told as why."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang, raising=False)
    async with make(connect_timeout=0.05) as client:
        with pytest.raises(NotSent, match=r"the name was not resolved within 0\.05 s"):
            await within(client.send(Message(b"x", "some-name:7"), dial="once"))


async def test_dialling_ends_at_once_when_the_node_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialling that learns that the node closes is the last one."""
    tried: list[Address] = []

    async def closed(_: object, address: Address) -> None:
        tried.append(address)
        raise Closed("node")

    async with make() as client:
        monkeypatch.setattr(client._peers.dialler, "attempt", closed)
        future = client.send(Message(b"x", "127.0.0.1:9"), timeout=None)
        (task,) = client._peers.dialler._tasks.values()
        future.cancel()
        future.peer.writable_waiters.append(asyncio.get_running_loop().create_future())  # type: ignore[attr-defined]
        client._peers.closing = Closed("node")
        await within(task)
        assert len(tried) == 1


async def test_off_loopback() -> None:
    """What would need encryption is told at once, to who sends and to who waits for the peer."""
    async with make() as client:
        with pytest.raises(NotSent, match=r"192\.0\.2\.1:7 requires TLS"):
            await within(client.send(Message(b"x", "192.0.2.1:7")))
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1:7 requires TLS"):
            await within(client.ready("192.0.2.1:7"))
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1:7 requires TLS"):
            await within(client.check("192.0.2.1:7"))


@pytest.mark.parametrize("kind", ["tcp", "unix", "inproc"])
async def test_every_kind_of_address(kind: str, tmp_path: Path) -> None:
    """Each kind of address can be dialled, answered, and is told when nobody is there."""
    hosts = {"tcp": "::1", "unix": f"unix:{tmp_path / 's'}", "inproc": "inproc:name"}
    async with make(listen=False) as client:
        async with make(Inbox(answer=b"yes"), host=hosts[kind]) as server:
            address = server.address
            assert (await within(client.request(to(server)))).data == b"yes"
            assert await within(client.check(address))
        await until(lambda: client.stats().connections == 0, "the end of the link")
        assert not await within(client.check(address))
        with pytest.raises(NotSent):
            await within(client.send(Message(b"x", address), dial="once"))


async def test_check_and_sends_share_a_dialling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants a link at the same time gets the same one."""
    diallings = Diallings(monkeypatch)
    async with make(Inbox()) as server, make() as client:
        address = server.address
        await within(
            asyncio.gather(client.check(address), client.send(to(server)), client.check(address), client.ready(address))
        )
        assert len(diallings) == 1
        assert client.stats().connections == server.stats().connections == 1


async def test_cancelled_check_leaves_nothing() -> None:
    """A check that is cancelled or too late leaves the dialling to its own end, and no peer behind."""
    async with raw_listener() as listener, make(connect_timeout=0.1) as client:
        assert not await within(client.check(at(listener), timeout=0.02))
        check = asyncio.ensure_future(client.check(at(listener)))
        await turns()
        check.cancel()
        await until(lambda: not client.peers, "the end of the peer")
        assert client.stats().connections == 0


@pytest.mark.parametrize("later", range(6))
async def test_a_check_that_is_cancelled_as_the_node_closes_is_cancelled(later: int) -> None:
    """A cancellation that a waiting check accepted is raised, however near the end of its node it is."""
    async with raw_listener() as listener, make() as client:
        check = asyncio.create_task(client.check(at(listener), timeout=None))
        silent = await listener.accept()
        stopping = asyncio.create_task(client.stop(0))
        await turns(later)
        accepted = check.cancel()
        with pytest.raises(asyncio.CancelledError if accepted else Closed):
            await within(check)
        await within(stopping)
        silent.close()


async def test_waiting_ends_with_the_node() -> None:
    """Who waits for a link when the node stops is told that it did."""
    async with raw_listener() as listener:
        client = make()
        await client.start()
        waits = [asyncio.ensure_future(wait) for wait in (client.check(at(listener)), client.ready(at(listener)))]
        await turns()
        await within(client.stop(drain=0))
        for wait in waits:
            with pytest.raises(Closed):
                await within(wait)


# Who is there


async def test_a_node_in_place_of_another_gets_what_waited() -> None:
    """What waits for an address goes to whoever is there now; what is for the node that was there fails."""
    port = free_port()
    first, second = Inbox(), Inbox()
    mine = Inbox()
    async with make(mine) as client:
        async with make(first, port=port) as old:
            await within(old.send(to(client, b"question")))
            (question,) = mine.messages
        await until(lambda: client.stats().connections == 0, "the end of the link")
        queued = client.send(Message(b"queued", f"127.0.0.1:{port}"))
        answer = client.send(question.reply(b"for the old one"), timeout=None)
        await turns()
        async with make(second, port=port):
            await within(queued)
            with pytest.raises(NotSent, match="another node is at its address now") as caught:
                await within(answer)
            assert isinstance(caught.value.__cause__, PeerLost)
            # And at once, now that it is known.
            again = client.send(question.reply(b"for the old one"), timeout=None)
            with pytest.raises(NotSent, match="another node is at its address now"):
                await within(again)
            with pytest.raises(NotSent, match="another node is at its address now"):
                await within(question.respond(b"for the old one"))
            await until(lambda: client.stats().connections == 1, "the one link that stays")
            assert len(client.peers) == 1
    assert (first.begun, second.begun) == ([], [b"queued"])


async def test_a_reply_finds_the_same_node_when_it_is_back() -> None:
    """A reply to a node that was forgotten is sent when the node with that identity is back at its address."""
    port = free_port()
    mine, theirs = Inbox(), Inbox()
    identity = b"the same node..."
    async with make(mine) as client:
        async with make(port=port, identity=identity) as node:
            await within(node.send(to(client, b"question")))
        await until(lambda: not client.peers, "the end of the peer")
        async with make(theirs, port=port, identity=identity):
            await within(client.send(mine.messages[0].reply(b"reply")))
            assert len(client.peers) == 1
    assert theirs.begun == [b"reply"]


async def test_a_reply_to_who_does_not_listen_and_is_gone() -> None:
    """A node that does not listen cannot be dialled: a reply to it fails at once when its link is gone."""
    mine = Inbox()
    async with make(mine) as server:
        async with make(listen=False) as client:
            await within(client.send(to(server)))
        await until(lambda: not server.peers, "the end of the peer")
        with pytest.raises(NotSent) as caught:
            await within(server.send(mine.messages[0].reply(b"reply"), timeout=None))
        assert isinstance(caught.value.__cause__, PeerLost)
        assert not server.peers


async def test_a_reply_to_who_does_not_listen_and_is_back() -> None:
    """When such a node dialled again, a reply goes over its newer link."""
    mine, theirs = Inbox(), Inbox()
    async with make(mine) as server, make(theirs, listen=False, timeout=0.2, reuse_time=0.1) as client:
        await within(client.send(to(server, b"first")))
        await until(lambda: client.stats().connections == 0 == server.stats().connections, "idle collection")
        await within(client.send(to(server, b"second")))
        await within(server.send(mine.messages[0].reply(b"reply")))
    assert theirs.begun == [b"reply"]


async def test_a_queue_moves_whole_to_another_node() -> None:
    """Requests, deadlines and cancellation go on working for what moved to another node at the address."""
    port = free_port()
    async with make() as client:
        async with make(Inbox(), port=port) as old:
            await within(client.send(to(old)))
        await until(lambda: client.stats().connections == 0, "the end of the link")
        address = f"127.0.0.1:{port}"
        request = client.request(Message(b"request", address))
        cancelled = client.send(Message(b"cancelled", address))
        short = client.send(Message(b"short", address), timeout=0.3)
        inbox = Inbox(hold=True, answer=b"answer")
        async with make(inbox, port=port, slots=2):
            await inbox.holds(2)
            cancelled.cancel()
            with pytest.raises(TimeoutError):
                await within(short)
            inbox.gate.set()
            assert (await within(request)).data == b"answer"
    assert inbox.begun[:1] == [b"request"]


async def test_a_link_that_comes_in_ends_the_dialling() -> None:
    """A message that waits for a node that cannot be reached goes over the link that this node makes."""
    inbox = Inbox()
    public = free_port()
    async with make() as server:
        future = server.send(Message(b"x", f"127.0.0.1:{public}"), timeout=None)
        await turns()
        async with make(inbox, public_port=public) as client:
            await within(client.ready(server.address))
            await within(future)
            await turns()
            assert server.stats().connections == 1
    assert inbox.begun == [b"x"]


async def test_announced_late_and_in_parts() -> None:
    """A listener whose handshake and announcement come byte by byte is a redpoll node like any other."""
    async with raw_listener() as listener, make() as client:
        future = client.send(Message(b"x", at(listener)))
        link = await listener.accept()
        for byte in handshake(listener.port, b"I" * 16) + announcement().encode():
            link.write(bytes([byte]))
            await turns(2)
        await link.read(45)
        frame = await link.read_frame()
        assert frame.kind & 0x40, "a deadline goes along, so it is known as a redpoll node"
        confirm(link, frame)
        await within(future)
        link.close()


async def test_a_node_may_send_to_itself() -> None:
    """A node sends to its own address as to any other."""
    inbox = Inbox(answer=b"myself")
    async with make(inbox) as node:
        assert (await within(node.request(to(node, b"who?")))).data == b"myself"
        await within(asyncio.gather(*(node.send(to(node)) for _ in range(10))))
        assert node.stats().connections == 2
        assert node.stats().conflicts == 0
    assert len(inbox.messages) == 11


async def test_address_objects() -> None:
    """An Address serves as well as its text."""
    async with make(Inbox()) as server, make() as client:
        assert await within(client.check(Address("tcp", "127.0.0.1", server.address.port)))
        assert await within(client.check(str(server.address)))
