"""Start and stop: at any moment, what was begun ends, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import (
    Address,
    Closed,
    Config,
    ConfigError,
    Message,
    Node,
    NotConfirmed,
    NotSent,
    Received,
    Refused,
    SendError,
    ShuttingDown,
    UsageError,
)
from tests.interop.raw import RawListener
from tests.node.support import (
    Inbox,
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
from tests.transport.test_listen import dialled, resolving

BIG = bytes(range(256)) * 16_384  # 4 MiB: more than any buffer on the way holds


async def stop_with(node: Node[Any], drain: float | None, within_seconds: float) -> float:
    """Stop a node; how long that took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.timeout(within_seconds):
        await node.stop(drain=drain)
    return loop.time() - begin


# Start


@pytest.mark.asyncio
async def test_default_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a port a node with a handler takes redpoll's, and one without takes any free one."""
    monkeypatch.setattr("redpoll.node.node.DEFAULT_PORT", port := free_port())
    async with Node(Inbox()) as served, Node() as pulled:
        assert served.address == Address("tcp", "127.0.0.1", port)
        assert pulled.address.port not in {0, port}


@pytest.mark.asyncio
async def test_port_zero_is_any_and_the_same_on_both_families() -> None:
    """Port 0 is one free port for both families, and it is what the node announces."""
    inbox = Inbox()
    async with make(inbox, host=("127.0.0.1", "::1")) as server, make(host=("::1", "127.0.0.1")) as client:
        assert [address.host for address in server.listening] == ["127.0.0.1", "::1"]
        assert len({address.port for address in server.listening}) == 1
        assert server.address == server.listening[0]
        for address in server.listening:
            await within(client.send(Message(b"hello", address)))
        ports = {message.address.port for message in inbox.messages if message.address is not None}
        assert ports == {client.address.port}


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_hosts(host: str) -> None:
    """A node listens at an IPv4 address, an IPv6 address and a name, and is dialled there by its address."""
    inbox = Inbox(answer=b"yes")
    async with make(inbox, host=host) as server, make(listen=False) as client:
        assert not server.address.is_name
        assert (await within(client.request(to(server)))).data == b"yes"


@pytest.mark.asyncio
async def test_unix_socket(tmp_path: Path) -> None:
    """A node listens at a unix socket, over a stale one, and takes it away when it stops."""
    path = tmp_path / "node"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with make(Inbox(answer=b"yes"), host=f"unix:{path}") as server, make(listen=False) as client:
        assert str(server.address) == f"unix:{path}"
        assert (await within(client.request(to(server)))).data == b"yes"
    assert not path.exists()


@pytest.mark.asyncio
async def test_backlog_holds_what_is_not_accepted(tmp_path: Path) -> None:
    """While a node accepts nobody, so many connections wait at its socket, and one; the system turns away the next."""
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        async with make(Inbox(), host=f"unix:{path}", backlog=3) as node:
            strangers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
            for stranger in strangers:
                stranger.setblocking(False)
            for stranger in strangers[:4]:
                stranger.connect(path)
            with pytest.raises(BlockingIOError):
                strangers[4].connect(path)
            await until(lambda: node.stats().connections == 4, "those that waited")
            strangers[4].connect(path)


@pytest.mark.asyncio
async def test_any_address_is_dialled_on_loopback() -> None:
    """The address of a node that listens on all interfaces is one that can be dialled."""
    async with make(Inbox(), host="0.0.0.0", encryption=False) as four, make(host="::", encryption=False) as six:
        assert four.address.host == "127.0.0.1"
        assert six.address.host == "::1"
        await within(six.send(to(four)))


@pytest.mark.asyncio
async def test_public_port_is_announced() -> None:
    """A node with a public port announces that one, and names it in its address."""
    public = free_port()
    inbox = Inbox()
    async with make(inbox) as server, make(public_port=public) as client:
        assert client.address.port == public != client.listening[0].port
        await within(client.send(to(server)))
        assert inbox.messages[0].address == Address("tcp", "127.0.0.1", public)


@pytest.mark.asyncio
async def test_node_that_does_not_listen() -> None:
    """A node that does not listen has no address, and is answered over its link."""
    inbox = Inbox(answer=b"over the link")
    async with make(inbox) as server, make(listen=False) as client:
        assert client.listening == ()
        with pytest.raises(Closed, match="the listener is not running"):
            _ = client.address
        with pytest.raises(Closed, match="the node is not running"):
            _ = make().address
        assert (await within(client.request(to(server)))).data == b"over the link"
        sent = server.send(inbox.messages[0].reply(b"later"))
        async with client.take(5) as later:
            assert later.data == b"later"
        await within(sent)
        assert (server.stats().connections, client.stats().connections) == (1, 1)


@pytest.mark.asyncio
async def test_busy_port() -> None:
    """A port that is taken is a ConfigError that names it, and the node may be started again when it is free."""
    first = make()
    await first.start()
    second = make(port=first.address.port)
    with pytest.raises(ConfigError, match=f"port={first.address.port}: is in use at 127.0.0.1"):
        await second.start()
    await first.stop()
    await not_running(second)
    async with second:
        assert second.address.port


@pytest.mark.asyncio
async def test_off_loopback_needs_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening or dialling off loopback in the clear has to be asked for, also by a name."""
    with pytest.raises(ConfigError, match="needs TLS, and there are no certificates"):
        await make(host="0.0.0.0").start()
    resolving(monkeypatch, "192.0.2.7")
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7:\d+ needs TLS"):
        await make(host="elsewhere").start()
    async with make() as node:
        with pytest.raises(NotSent, match=r"192\.0\.2\.7:7 needs TLS") as caught:
            await within(node.send(Message(b"x", "elsewhere:7")))
        assert isinstance(caught.value.__cause__, ConfigError)


@pytest.mark.asyncio
async def test_bad_addresses() -> None:
    """What is no address is a UsageError at once; an address nobody can be dialled at as well."""
    async with make() as node:
        for text in ("127.0.0.1", "::1:2998", "127.0.0.1:99999", "unix:", "inproc:"):
            with pytest.raises(UsageError):
                node.send(Message(b"x", text))
        with pytest.raises(UsageError, match="the message has no address"):
            node.send(Message(b"x"))
        with pytest.raises(UsageError, match=r"127\.0\.0\.1:0 cannot be dialled"):
            node.send(Message(b"x", "127.0.0.1:0"))


@pytest.mark.asyncio
async def test_started_once() -> None:
    """A node is started once, also after it has stopped."""
    node = make()
    await node.start()
    with pytest.raises(UsageError, match="this node is running: a node is started once"):
        await node.start()
    await node.stop()
    with pytest.raises(UsageError, match="this node is stopped: a node is started once"):
        await node.start()


@pytest.mark.asyncio
async def test_cancelled_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is cancelled while a name is looked up leaves nothing open, and can be made again."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "getaddrinfo", hang, raising=False)
    node = make(host=("127.0.0.1", "some-name"))
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert "new" in repr(node)


def test_started_outside_asyncio() -> None:
    """Where another library runs the coroutine, as trio does, that is a UsageError that says what a node needs."""
    starting = make().start()
    with pytest.raises(UsageError, match=r"asyncio event loop, and none is running here \(.*anyio_backend"):
        starting.send(None)


@pytest.mark.asyncio
async def test_started_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two starts at once the second is a UsageError, and the node that runs is the first's."""
    loop = asyncio.get_running_loop()
    asked, found = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int, **_: object) -> list[Any]:
        asked.set()
        await found.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", slow, raising=False)
    node = make(host="some-name")
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    second = asyncio.ensure_future(node.start())
    await turns()
    found.set()
    with pytest.raises(UsageError, match="this node is starting: a node is started once"):
        await within(second)
    await within(start)
    assert len(node.listening) == 1
    await within(node.stop())


@pytest.mark.asyncio
async def test_stop_during_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is stopped while it starts does not run afterwards."""
    loop = asyncio.get_running_loop()
    asked, found = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int, **_: object) -> list[Any]:
        asked.set()
        await found.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", slow, raising=False)
    node = make(host="some-name")
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    await node.stop()
    found.set()
    with pytest.raises(Closed):
        await within(start)
    assert node.listening == ()


# Not running


async def not_running(node: Node[Any]) -> None:
    """Everything that needs a running node says that it is not."""
    message = Message(b"x", "127.0.0.1:2998")
    for call in (node.send, node.request):
        with pytest.raises(Closed, match="the node is not running"):
            call(message)
    for wait in (
        node.send_many([message]),
        node.ready("127.0.0.1:2998"),
        node.check("127.0.0.1:2998"),
        node.serve_forever(),
        node.receive(),
    ):
        with pytest.raises(Closed, match="the node is not running"):
            await within(wait)


@pytest.mark.asyncio
async def test_before_start_and_after_stop() -> None:
    """A node that was not started, or has stopped, sends and receives nothing, and still can be looked at."""
    node = make()
    await not_running(node)
    assert (node.listening, node.peers, node.stats().sent) == ((), (), 0)
    await node.start()
    await node.stop()
    await not_running(node)
    assert (node.listening, node.peers, node.stats().connections) == ((), (), 0)


@pytest.mark.asyncio
async def test_stop_of_a_node_never_started() -> None:
    """Stopping a node that was not started is no error; it cannot be started afterwards."""
    node = make()
    await node.stop()
    await node.stop()
    with pytest.raises(UsageError, match="this node is stopped"):
        await node.start()


@pytest.mark.asyncio
async def test_repr() -> None:
    """A node's text names it, its state and where it listens."""
    node = make(host=("127.0.0.1", "::1"), identity=bytes.fromhex("00112233445566778899aabbccddeeff"))
    assert repr(node) == "<Node 00112233 new, not listening>"
    async with node:
        port = node.address.port
        assert repr(node) == f"<Node 00112233 running, 127.0.0.1:{port}, [::1]:{port}>"
    assert repr(node) == "<Node 00112233 stopped, not listening>"


@pytest.mark.asyncio
async def test_dropped_without_stop_warns() -> None:
    """A node that is dropped while it runs says so."""
    node = make(listen=False)
    await node.start()
    text = repr(node)
    del node
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    assert [str(warning.message) for warning in caught] == [f"{text} was dropped without being stopped"]


def test_dropped_with_its_loop_warns() -> None:
    """A node that listens, and whose loop ends under it, says so too."""

    async def forget() -> str:
        node = make()
        await node.start()
        return repr(node)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = redpoll.run(forget())
        gc.collect()
    assert f"{text} was dropped without being stopped" in [str(warning.message) for warning in caught]


@pytest.mark.asyncio
async def test_stopped_node_does_not_warn() -> None:
    """A node that was stopped is dropped silently; so is one that never ran."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = make()
        async with node:
            pass
        other = make()
        del node, other
        gc.collect()


# Stop


@pytest.mark.asyncio
async def test_serve_forever_ends_with_the_node() -> None:
    """Whoever waits in serve_forever goes on when the node has stopped; cancelling that does not stop it."""
    node = make()
    await node.start()
    cancelled = asyncio.ensure_future(node.serve_forever())
    serving = asyncio.ensure_future(node.serve_forever())
    await turns()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert "running" in repr(node)
    await node.stop()
    await within(serving)


@pytest.mark.asyncio
async def test_error_in_the_block_stops_at_once() -> None:
    """Leaving the block with an exception drains nothing, and the exception comes out."""
    inbox = Inbox(hold=True)
    futures: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    async with make(inbox) as server:
        begin = loop.time()
        client = make()

        async def fail() -> None:
            async with client:
                futures.append(client.send(to(server)))
                await inbox.holds(1)
                raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            await fail()
        assert loop.time() - begin < 4
        with pytest.raises(NotConfirmed):
            await futures[0]
        inbox.gate.set()


@pytest.mark.asyncio
async def test_handlers_end_and_are_acknowledged() -> None:
    """Stopping lets handlers end: what they worked on is acknowledged, what waited behind them is worked on too."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        futures = [client.send(to(server, bytes([n]))) for n in range(5)]
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns()
        assert not stop.done()
        inbox.gate.set()
        await within(stop)
        await within(asyncio.gather(*futures))
    assert inbox.ended == [bytes([n]) for n in range(5)]


@pytest.mark.asyncio
async def test_answers_are_given_while_stopping() -> None:
    """What a handler returns while its node stops reaches whoever asked."""
    inbox = Inbox(hold=True, answer=b"in time")
    async with make() as client:
        server = make(inbox)
        await server.start()
        answer = client.request(to(server))
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns()
        inbox.gate.set()
        await within(stop)
        assert (await answer).data == b"in time"


@pytest.mark.asyncio
async def test_queued_and_unconfirmed_sends_end() -> None:
    """Stopping waits for what was sent, far more than a window of it: everything is handled once, in order."""
    inbox = Inbox()
    async with make(inbox, slots=1, window=4) as server:
        client = make()
        await client.start()
        await within(client.ready(server.address))
        futures = [client.send(to(server, n.to_bytes(2, "big"))) for n in range(500)]
        await within(client.stop())
        await within(asyncio.gather(*futures))
    assert inbox.begun == [n.to_bytes(2, "big") for n in range(500)]


@pytest.mark.asyncio
async def test_unacknowledged_sends_are_handled() -> None:
    """What was sent without acknowledgement before the stop arrives all the same."""
    inbox = Inbox()
    async with make(inbox, slots=1, window=4) as server:
        client = make(acknowledge=False)
        await client.start()
        await within(client.ready(server.address))
        futures = [client.send(to(server, n.to_bytes(2, "big"))) for n in range(300)]
        await within(client.stop())
        await within(asyncio.gather(*futures))
        await inbox.holds(300)
    assert inbox.begun == [n.to_bytes(2, "big") for n in range(300)]


@pytest.mark.asyncio
async def test_stop_while_dialling() -> None:
    """Stopping while a peer is dialled goes on dialling for the time it has; then the message was not sent."""
    client = make()
    await client.start()
    port = free_port()
    future = client.send(Message(b"x", f"127.0.0.1:{port}"), timeout=None)
    await turns()
    took = await stop_with(client, 0.1, 5)
    assert took > 0.09
    with pytest.raises(NotSent, match="the node is not running") as caught:
        await within(future)
    assert isinstance(caught.value.__cause__, Closed)


@pytest.mark.asyncio
async def test_listener_that_comes_while_the_dialler_stops() -> None:
    """A message that waits for its peer is delivered if the peer comes while the sender's node drains."""
    inbox = Inbox()
    client = make()
    await client.start()
    port = free_port()
    future = client.send(Message(b"x", f"127.0.0.1:{port}"))
    await turns()
    stop = asyncio.ensure_future(client.stop())
    await turns()
    async with make(inbox, port=port):
        await within(stop)
        await within(future)
    assert inbox.begun == [b"x"]


@pytest.mark.asyncio
async def test_stop_amid_a_handshake() -> None:
    """A link whose handshake is not there yet, in either role, is closed by a stop without waiting for it."""
    listener = RawListener()
    node = make()
    await node.start()
    future = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
    link = await listener.accept()
    with dialled(node.address):
        await until(lambda: node.stats().connections == 2, "both links")
        assert await stop_with(node, 0, 5) < 2
    with pytest.raises(NotSent):
        await within(future)
    link.close()
    listener.close()


@pytest.mark.asyncio
async def test_large_body_on_its_way_out() -> None:
    """A stop waits for a large body that travels, as long as it may."""
    inbox = Inbox()
    async with make(inbox) as server:
        client = make()
        await client.start()
        future = client.send(to(server, BIG))
        await turns(3)
        await within(client.stop())
        await within(future)
    assert inbox.begun == [BIG]


@pytest.mark.asyncio
async def test_large_body_on_its_way_in() -> None:
    """A large body whose beginning has arrived is received whole, handled and acknowledged before the stop ends."""
    inbox = Inbox()
    async with make() as client:
        server = make(inbox)
        await server.start()
        await within(client.ready(server.address))
        future = client.send(to(server, BIG * 4), timeout=None)
        await until(lambda: server.stats().bytes_received > 100_000, "its beginning")
        assert not inbox.messages
        await within(server.stop())
        await within(future)
    assert inbox.begun == [BIG * 4]


@pytest.mark.asyncio
async def test_large_body_cut_off() -> None:
    """A stop without time cuts a large body off: its sender is told that it is not confirmed, or not begun."""
    inbox = Inbox()
    async with make(inbox) as server:
        client = make()
        await client.start()
        await within(client.ready(server.address))
        future = client.send(to(server, BIG * 4))
        await until(lambda: server.stats().bytes_received > 100_000, "its beginning")
        assert await stop_with(client, 0, 5) < 2
        with pytest.raises(NotConfirmed):
            await within(future)
        await until(lambda: server.stats().connections == 0, "the end of the link")
        assert inbox.begun == []


@pytest.mark.asyncio
async def test_time_over_refuses_and_cancels() -> None:
    """When the time is over, handlers are cancelled and what waits is refused; each sender learns which it was."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        first, second = client.send(to(server, b"first")), client.send(to(server, b"second"))
        await inbox.holds(1)
        await until(lambda: server.stats().received == 2, "both messages")
        took = await stop_with(server, 0.05, 5)
        assert took > 0.045
        assert inbox.cancelled == 1
        with pytest.raises(Refused, match="the node stopped while it was handled") as begun:
            await within(first)
        assert begun.value.sent
        with pytest.raises(ShuttingDown, match="the node stopped before it was begun") as waiting:
            await within(second)
        assert not waiting.value.sent
    assert inbox.begun == [b"first"]


@pytest.mark.asyncio
async def test_message_sent_while_the_receiver_stops() -> None:
    """What comes after the goodbye is not begun: it waits for another link, and was not sent if none comes."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        first = client.send(to(server, b"first"))
        await inbox.holds(1)
        address = server.address
        stop = asyncio.ensure_future(server.stop())
        await turns(1)
        late = client.send(Message(b"late", address), timeout=0.3)
        await turns()
        inbox.gate.set()
        await within(stop)
        await within(first)
        with pytest.raises(SendError) as caught:
            await within(late)
        assert not caught.value.sent
    assert inbox.begun == [b"first"]


@pytest.mark.asyncio
async def test_restart_gets_what_came_too_late() -> None:
    """What came after the goodbye is delivered to whoever listens there next, once."""
    port = free_port()
    first_run, second_run = Inbox(hold=True), Inbox()
    async with make() as client:
        server = make(first_run, port=port)
        await server.start()
        early = client.send(to(server, b"early"))
        await first_run.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns(1)
        late = client.send(Message(b"late", f"127.0.0.1:{port}"))
        await turns()
        first_run.gate.set()
        await within(stop)
        async with make(second_run, port=port):
            await within(asyncio.gather(early, late))
    assert (first_run.begun, second_run.begun) == ([b"early"], [b"late"])


@pytest.mark.asyncio
async def test_stop_twice() -> None:
    """A second stop waits for the first, whatever time it was given; a third finds nothing to do."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        future = client.send(to(server))
        await inbox.holds(1)
        stops = [asyncio.ensure_future(server.stop()), asyncio.ensure_future(server.stop(drain=0))]
        await turns()
        assert not any(stop.done() for stop in stops)
        inbox.gate.set()
        await within(asyncio.gather(*stops, future))
        await within(server.stop())


@pytest.mark.asyncio
async def test_cancelled_stop_still_closes() -> None:
    """Cancelling a stop ends its draining at once; the node is closed when the cancellation comes out."""
    inbox = Inbox(hold=True)
    async with make() as client:
        server = make(inbox)
        await server.start()
        future = client.send(to(server))
        await inbox.holds(1)
        stop = asyncio.ensure_future(server.stop(drain=None))
        other = asyncio.ensure_future(server.stop())
        await turns()
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(stop)
        assert "stopped" in repr(server)
        await within(other)
        await settle(future)
    assert inbox.cancelled == 1


@pytest.mark.asyncio
async def test_stop_cancelled_twice() -> None:
    """Cancelled again while it closes, the stop gives up waiting, and the node closes all the same."""

    async def stubborn(message: Received[bytes]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    begun, go_on = asyncio.Event(), asyncio.Event()
    async with make() as client:
        server = make(stubborn)
        await server.start()
        future = client.send(to(server))
        await within(begun.wait())
        stop = asyncio.ensure_future(server.stop(drain=None))
        for _ in range(2):
            await turns()
            stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(stop)
        go_on.set()
        await within(server.stop())
        assert "stopped" in repr(server)
        await settle(future)


@pytest.mark.asyncio
@pytest.mark.parametrize("through", ["itself", "a timeout", "a task", "wait_for"])
async def test_stop_from_a_handler(through: str) -> None:
    """A handler may stop its own node: the stop waits for all but that handler, which runs to its end."""

    async def handler(message: Received[bytes]) -> None:
        if message.data == b"stop":
            match through:
                case "itself":
                    await message.node.stop()
                case "a timeout":
                    async with asyncio.timeout(5):
                        await message.node.stop()
                case "a task":
                    stops.append(asyncio.ensure_future(message.node.stop()))
                case _:
                    try:
                        await asyncio.wait_for(message.node.stop(drain=0.05), 5)
                    except asyncio.CancelledError:
                        # Before Python 3.12 it stops in a task of its own, and the handler is one to be ended.
                        stopped.set()
                        raise
            stopped.set()
        else:
            await until(lambda: "stopping" in repr(message.node), "the stop")

    stops: list[asyncio.Future[None]] = []
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with make() as client:
        server = make(handler, slots=2)
        await server.start()
        other = client.send(to(server, b"other"))
        future = client.send(to(server, b"stop"))
        begin = loop.time()
        await within(stopped.wait())
        await within(asyncio.gather(*stops))
        await within(server.stop())
        assert loop.time() - begin < 4
        await settle(other, future)
        if through != "wait_for":  # there the node cannot know that it is its handler that waits
            assert other.exception() is None
        error = future.exception()
        assert error is None or isinstance(error, SendError)


@pytest.mark.asyncio
async def test_plain_handler_stops_its_node() -> None:
    """A plain function that starts a stop is acknowledged before the node is gone."""
    stops: list[asyncio.Future[None]] = []

    def handler(message: Received[bytes]) -> None:
        stops.append(asyncio.ensure_future(message.node.stop()))

    async with make() as client:
        server = make(handler)
        await server.start()
        await within(client.send(to(server)))
        await within(asyncio.gather(*stops))
        assert "stopped" in repr(server)


@pytest.mark.asyncio
async def test_handler_that_releases_early_is_waited_for() -> None:
    """A handler that released its message and works on is waited for as well."""

    async def handler(message: Received[bytes]) -> None:
        message.release()
        await gate.wait()
        ended.append(message.data)

    gate, ended = asyncio.Event(), []  # type: asyncio.Event, list[bytes]
    async with make() as client:
        server = make(handler)
        await server.start()
        await within(client.send(to(server)))
        stop = asyncio.ensure_future(server.stop())
        await turns()
        assert not stop.done()
        gate.set()
        await within(stop)
    assert ended == [b"x"]


@pytest.mark.asyncio
async def test_retry_does_not_outlive_the_node() -> None:
    """A send that would be sent again when its link is lost ends with its node."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server:
        client = make()
        await client.start()
        future = client.send(to(server), retry=5, timeout=None)
        await inbox.holds(1)
        await within(client.stop(drain=0))
        with pytest.raises(SendError):
            await within(future)
        inbox.gate.set()


@pytest.mark.asyncio
async def test_frozen_peer_does_not_hold_up_the_stop() -> None:
    """A peer that reads nothing more costs a stop its time to drain and little more."""
    listener = RawListener()
    node = make(keepalive=None, timeout=None)
    await node.start()
    futures = [node.send(Message(BIG, f"127.0.0.1:{listener.port}"), acknowledge=False) for _ in range(4)]
    async with raw_accepting(listener) as link:
        link.shrink_receive_buffer()
        await until(lambda: node.stats().sent, "the first message")
        assert await stop_with(node, 0.05, 5) < 2
        await settle(*futures)
        with pytest.raises(SendError):
            await futures[-1]
    listener.close()


@pytest.mark.asyncio
async def test_waiting_consumers_are_told() -> None:
    """Whoever waits for a message when the node stops is told; loops end."""
    node = make()
    await node.start()

    async def loop_over() -> None:
        async for _ in node:
            raise AssertionError

    receiving, looping = asyncio.ensure_future(node.receive()), asyncio.ensure_future(loop_over())
    await turns()
    await within(node.stop())
    with pytest.raises(Closed):
        await within(receiving)
    await within(looping)


@pytest.mark.asyncio
async def test_pulled_message_may_end_after_the_stop() -> None:
    """A message that was pulled and not ended is not confirmed; ending it after the stop does nothing."""
    async with make() as client:
        server = make()
        await server.start()
        future = client.send(to(server))
        message = await within(server.receive())
        await within(server.stop(drain=0))
        message.release()
        message.refuse()
        with pytest.raises(NotConfirmed):
            await within(future)


@pytest.mark.asyncio
async def test_no_timers_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop no timer of the node is left on the loop, whatever deadlines it had."""
    loop = asyncio.get_running_loop()
    inbox = Inbox(hold=True)
    timers: list[asyncio.TimerHandle] = []
    call_at, call_later = loop.call_at, loop.call_later

    def keep(handle: asyncio.TimerHandle) -> asyncio.TimerHandle:
        timers.append(handle)
        return handle

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_at", lambda *args, **kw: keep(call_at(*args, **kw)), raising=False)
        patch.setattr(loop, "call_later", lambda *args, **kw: keep(call_later(*args, **kw)), raising=False)
        server, client = make(inbox), make(timeout=30)
        await server.start()
        await client.start()
        async with raw_dialling(server, port=0, redpoll=False):
            futures = [client.send(to(server), timeout=20 + n) for n in range(3)]
            futures.append(client.send(Message(b"x", f"127.0.0.1:{free_port()}")))
            await inbox.holds(1)
            await within(client.stop(drain=0))
            await within(server.stop(drain=0))
            await settle(*futures)
    await turns()
    left = [timer for timer in timers if not timer.cancelled() and timer.when() > loop.time() + 1]
    assert not left


Scenario = Callable[[Node[Any], Node[Any]], Coroutine[Any, Any, object]]


async def _requests(server: Node[Any], client: Node[Any]) -> None:
    await client.request(to(server))


async def _burst(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(*(client.send(to(server)) for _ in range(50)))


async def _large(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(client.send(to(server, BIG)), client.send(to(server)))


async def _both_ways(server: Node[Any], client: Node[Any]) -> None:
    await asyncio.gather(client.send(to(server)), server.send(to(client)))


@pytest.mark.asyncio
@pytest.mark.parametrize("scenario", [_requests, _burst, _large, _both_ways])
@pytest.mark.parametrize("stops_first", ["server", "client"])
@pytest.mark.parametrize("drain", [0, 5])
async def test_stop_at_any_moment(scenario: Scenario, stops_first: str, drain: float) -> None:
    """Whatever turn of the loop a stop begins at, every send ends, as done or with a SendError, and nothing is left."""
    for moment in (*range(12), 20, 40):
        inbox = Inbox(answer=b"answer")
        server, client = make(inbox), make(Inbox())
        await server.start()
        await client.start()
        work = asyncio.ensure_future(scenario(server, client))
        await turns(moment)
        first, second = (server, client) if stops_first == "server" else (client, server)
        await within(first.stop(drain=drain))
        await within(second.stop(drain=0))
        try:
            await within(work)
        except (SendError, Closed):
            pass


@pytest.mark.asyncio
async def test_config_is_the_one_it_was_made_with() -> None:
    """The options are those given, keywords before the record."""
    node = Node(None, Config(port=0, timeout=7), timeout=8)
    assert (node.config.port, node.config.timeout) == (0, 8)
