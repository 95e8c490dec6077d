"""Nodes whose links gRPC carries."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from redpoll import Message, NotConfirmed, NotSent, PeerLost, nq
from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed
from redpoll.nq.grpc import carrier as carriers
from redpoll.nq.grpc.carrier import GrpcCarrier
from redpoll.nq.grpc.options import ACCEPTED, LARGEST
from redpoll.testing import FaultProxy
from tests.node.support import until, within
from tests.nq.grpc.processes import GrpcProcess
from tests.nq.grpc.support import echo, make, stranger
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

#: Bytes of a body of 40 MB that went out when it is in the middle: how much gRPC takes ahead of a reader is its own.
MIDDLE = 1_000_000


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_messages_and_answers_pass(host: str) -> None:
    """Of any size, by IPv4, IPv6 and a name; the port that was bound is told."""
    async with make(echo, host=host) as there, make(listen=False) as node:
        assert there.address.port != 0
        address = Address("tcp", host, there.address.port)
        for size in (0, 1, 70_000, LARGEST, 3 * LARGEST + 1):
            body = (bytes(range(251)) * (size // 251 + 1))[:size]
            assert (await within(node.request(Message(body, address)))).data == body
        (peer,) = there.peers
        assert peer.address is not None
        assert peer.address.host == ("::1" if host == "::1" else peer.address.host)


async def test_many_messages_arrive_in_order_both_ways() -> None:
    """While both ends send at once, small and large, each gets all of the other's, in order."""
    got: dict[str, list[int]] = {"there": [], "here": []}
    first: list[Message[Any]] = []

    def keep(name: str) -> Any:
        def handle(message: Any) -> None:
            got[name].append(len(message.data))
            first.append(message)

        return handle

    sizes = [7 * number if number % 50 else 300_000 + number for number in range(400)]
    async with make(keep("there")) as there, make(keep("here"), listen=False) as node:
        await within(node.send(Message(b"first", there.address)))
        out = [node.send(Message(bytes(size), there.address), timeout=None) for size in sizes]
        back = [there.send(first[0].reply(bytes(size)), timeout=None) for size in sizes]
        await within(asyncio.gather(*out, *back))
    assert got == {"there": [5, *sizes], "here": sizes}


async def test_pieces_are_as_small_as_told() -> None:
    """A message of gRPC's has at most `transport_size` bytes."""
    got = []
    server = grpc.aio.server()
    done = asyncio.Event()

    async def handle(_: object, context: Any) -> None:
        await context.send_initial_metadata((ACCEPTED,))
        while (data := await context.read()) is not grpc.aio.EOF:
            got.append(len(data))
        done.set()

    handler = grpc.stream_stream_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("redpoll.nq", {"Link": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    carrier = GrpcCarrier(nq.CommunicatorOptions(connection=nq.ConnectionOptions(transport_size=4096)))

    class Writer(asyncio.BufferedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes(10_000))
            transport.close()

    await within(carrier.dial(Address("tcp", "127.0.0.1", port), Writer, asyncio.get_running_loop()))
    await within(done.wait())
    await within(carrier.wait_ended())
    await server.stop(None)
    assert got == [4096, 4096, 1808]


async def test_nobody_listens() -> None:
    """Dialling fails at once, with the system's word for it."""
    async with make(listen=False, dial="once") as node:
        with pytest.raises(NotSent, match="Connection refused") as failed:
            await within(node.send(Message(b"", f"127.0.0.1:{free_port()}")))
        assert isinstance(failed.value.__cause__, DialFailed)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_name_that_stands_for_nothing(encrypted: bool) -> None:
    """Dialling fails, whoever looks it up."""
    security = nq.SecurityOptions() if encrypted else None
    carrier = GrpcCarrier(nq.CommunicatorOptions(security=security))
    async with make(listen=False, dial="once", carrier=carrier) as node:
        with pytest.raises(NotSent, match=r"nowhere\.invalid"):
            await within(node.send(Message(b"", "nowhere.invalid:1")))


async def test_a_server_of_something_else() -> None:
    """Whoever speaks gRPC and does not know a link says so; whoever speaks no HTTP/2 does too."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with make(listen=False, dial="once") as node:
        with pytest.raises(NotSent, match="it is a gRPC server, but none of redpoll"):
            await within(node.send(Message(b"", f"127.0.0.1:{port}")))
    await server.stop(None)

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with web, make(listen=False, dial="once") as node:
        with pytest.raises(NotSent, match=r"HTTP/2"):
            await within(node.send(Message(b"", Address.of_socket(web.sockets[0].getsockname()))))


async def test_dialling_is_given_up_in_time() -> None:
    """A port that takes connections and says nothing does not hold a node up, nor does it keep it from stopping."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address.of_socket(silent.getsockname())
        async with make(listen=False, connect_timeout=0.1, dial="once") as node:
            with pytest.raises(NotSent, match=r"no link within 0\.1 s"):
                await within(node.send(Message(b"", address)))
        async with make(listen=False) as node:
            sent = node.send(Message(b"", address))
            silent.accept()[0].close()
            await within(node.stop(drain=0))
            with pytest.raises(NotSent):
                await sent


async def test_only_tcp_is_dialled() -> None:
    """Other kinds of addresses are for sockets."""
    async with make(listen=False, dial="once") as node:
        with pytest.raises(NotSent, match="gRPC dials TCP addresses only"):
            await within(node.send(Message(b"", "unix:/nowhere")))


async def test_a_server_that_stops_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """The client is told; what it sends then waits, and goes over a new channel when the server is there again."""
    port = free_port()
    async with make(listen=False) as node:
        lost = []
        node.events.peer_lost = lambda _, error: lost.append(error)
        for _ in range(3):
            async with make(echo, port=port) as there:
                assert (await within(node.request(Message(b"x", there.address)))).data == b"x"
            await until(lambda: lost, "the end of the link")
            lost.clear()
        waiting = node.request(Message(b"late", f"127.0.0.1:{port}"))
        async with make(echo, port=port):
            assert (await within(waiting)).data == b"late"
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]


async def test_a_client_that_stops() -> None:
    """The server is told, and keeps nothing of it."""
    async with make(echo) as there:
        lost = asyncio.Event()
        there.events.peer_lost = lambda *_: lost.set()
        async with make(listen=False) as node:
            await within(node.send(Message(b"x", there.address)))
        await within(lost.wait())
        assert not [peer for peer in there.peers if peer.connected]


async def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """What it had not answered fails as not confirmed; its successor is found."""
    async with GrpcProcess(tmp_path) as process, make(listen=False) as node:
        await within(node.send(Message(b"before", process.address)))
        asked = node.request(Message(b"compute 60", process.address), timeout=None)
        await until(lambda: len(process.begun) == 2, "the handler")
        process.kill()
        with pytest.raises(NotConfirmed) as unsure:
            await within(asked)
        assert isinstance(unsure.value.__cause__, PeerLost)
        async with GrpcProcess(tmp_path, port=process.address.port) as successor:
            await within(node.send(Message(b"after", successor.address), timeout=None))
            assert successor.begun == ["after"]


async def test_a_server_that_is_frozen(tmp_path: Path, impatient: None) -> None:
    """Pings find it, as with sockets, in the middle of a transfer too; nothing is left of the link."""
    async with GrpcProcess(tmp_path, keepalive=30) as process, make(listen=False, keepalive=0.3) as node:
        await within(node.send(Message(b"before", process.address)))
        process.freeze()
        sent = node.send(Message(bytes(40_000_000), process.address), timeout=None)
        with pytest.raises((NotConfirmed, NotSent)):
            await within(sent)
        process.thaw()
        await within(node.send(Message(b"after", process.address)))


async def test_stopping_does_not_wait_for_who_is_frozen(tmp_path: Path, impatient: None) -> None:
    """A node that stops in the middle of a transfer to a server that is frozen leaves nothing behind."""
    async with GrpcProcess(tmp_path, keepalive=30) as process:
        async with make(echo, keepalive=30) as node:
            await within(node.send(Message(b"before", process.address)))
            process.freeze()
            sent = node.send(Message(bytes(40_000_000), process.address), timeout=None)
            await until(lambda: node.stats().bytes_sent > MIDDLE, "the transfer")
            await within(node.stop(drain=0))
            with pytest.raises((NotConfirmed, NotSent)):
                await sent


@pytest.mark.parametrize("side", ["server", "client"])
async def test_stopping_while_the_network_stands_still(side: str, impatient: None) -> None:
    """In the middle of a transfer either end stops, and the other one when the network is gone; nothing is left."""
    async with make(echo, keepalive=30) as there, FaultProxy(there.address) as proxy:
        async with make(echo, listen=False, keepalive=30) as node:
            message = await within(node.request(Message(b"x", proxy.address)))
            assert message.data == b"x"
            proxy.freeze()
            body = bytes(40_000_000)
            sent = node.request(Message(body, proxy.address), timeout=None)
            await until(lambda: node.stats().bytes_sent > MIDDLE, "the transfer")
            await within((there if side == "server" else node).stop(drain=0))
            with pytest.raises((NotConfirmed, NotSent)):
                await within(sent)


async def test_cancelled_while_it_dials() -> None:
    """Whatever a dialling waits for, cancelling ends it, and leaves nothing."""
    loop = asyncio.get_running_loop()
    carrier = GrpcCarrier(nq.CommunicatorOptions())
    async with make(echo) as there:
        for turns in range(30):
            made: list[Any] = []

            class Protocol(asyncio.BufferedProtocol):
                def get_buffer(self, sizehint: int) -> bytearray:
                    return bytearray(1000)

                def connection_made(self, transport: asyncio.BaseTransport, made: list[Any] = made) -> None:
                    made.append(transport)

            task = loop.create_task(carrier.dial(there.address, Protocol, loop))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await within(task)
            except asyncio.CancelledError:
                assert not made
            else:
                made[0].abort()
            await within(carrier.wait_ended())


async def test_a_dialling_that_is_given_up_ends_before_its_loop_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for gRPC's own tasks too, however long: objects that they leave would stay, with their sockets."""
    monkeypatch.setattr(carriers, "_ENDING", 0.0)  # as if the process stood still for all that time
    carrier = GrpcCarrier(nq.CommunicatorOptions())
    loop = asyncio.get_running_loop()
    for turns in range(1, 60):
        task = asyncio.create_task(
            carrier.dial(Address("tcp", "127.0.0.1", free_port()), asyncio.BufferedProtocol, loop)
        )
        for _ in range(turns % 20):
            await asyncio.sleep(0.0005 * (turns // 20))
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        await within(carrier.wait_ended())
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_link_that_is_aborted() -> None:
    """Both ends are told, whichever gives it up."""
    loop = asyncio.get_running_loop()
    carrier = GrpcCarrier(nq.CommunicatorOptions())

    class Protocol(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.made: asyncio.Future[Any] = loop.create_future()
            self.lost: asyncio.Future[Any] = loop.create_future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.made.set_result(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(exc)

    class Acceptor:
        def admits(self, remote: Address) -> bool:
            return True

        def accepted(self, remote: Address) -> Protocol:
            served.append(Protocol())
            return served[-1]

    served: list[Protocol] = []
    listener = carrier.listener(Acceptor(), loop, 1)
    await listener.open(("127.0.0.1",), 0, lambda _: None)
    listener.accept()
    for side in ("here", "there"):
        for close in ("abort", "close"):
            mine = Protocol()
            await within(carrier.dial(listener.addresses[0], lambda mine=mine: mine, loop))  # type: ignore[misc]
            theirs = served[-1]
            ends = (mine, theirs) if side == "here" else (theirs, mine)
            getattr(await ends[0].made, close)()
            assert await within(ends[0].lost) is None
            error = await within(ends[1].lost)
            # A server may be told the end of a stream that was cancelled before its cancellation.
            assert (error is None) == (close == "close") or (close == "abort" and side == "here")
    listener.close()
    await within(carrier.wait_ended())
    await within(carrier.wait_ended())


async def test_a_server_that_takes_too_long_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for beyond a bound, goes on ending, and is waited for again."""
    monkeypatch.setattr(carriers, "_ENDING", 0.01)
    carrier = GrpcCarrier(nq.CommunicatorOptions())
    go_on = asyncio.Event()
    ended: list[str] = []

    class Slow:
        closed = True

        async def wait_ended(self) -> None:
            await go_on.wait()
            ended.append("ended")

    slow = Slow()
    carrier._listeners.add(slow)  # type: ignore[arg-type]
    await within(carrier.wait_ended())
    assert ended == []
    monkeypatch.undo()
    go_on.set()
    await within(carrier.wait_ended())
    assert ended == ["ended"]


async def test_a_node_that_cannot_listen_leaves_nothing() -> None:
    """It may be started again, at the port that it could not have."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        node = make(echo, port=port)
        with pytest.raises(ConfigError, match=f"port={port}: is in use"):
            await node.start()
    async with node:
        async with stranger(node.address) as call:
            await within(call.initial_metadata())
