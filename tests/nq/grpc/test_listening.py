"""Where streams come in: ports, families, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import grpc.aio
import pytest

from redpoll import Message, NotSent, nq
from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.grpc import listening
from redpoll.nq.grpc.carrier import GrpcCarrier
from redpoll.nq.grpc.library import tasks_of
from redpoll.nq.grpc.listening import GrpcListener, address_of
from redpoll.nq.grpc.options import METHOD
from tests.node.support import until, within
from tests.nq.grpc.support import echo, make, stranger, to_end
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


class Nobody:
    """An acceptor that stays shut."""

    def admits(self, remote: Address) -> bool:
        """Not anybody."""
        return False

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        """Not called."""
        raise AssertionError


async def discard(listener: GrpcListener) -> None:
    """End one."""
    listener.close()
    await within(listener.wait_ended())


async def test_the_bound_port_is_told() -> None:
    """Any free one is the same at all hosts; a fixed one is what it was told to be."""
    for port in (0, free_port()):
        listener = GrpcListener(Nobody(), asyncio.get_running_loop(), 100)
        assert (listener.port, listener.descriptors) == (0, [])
        checked: list[Address] = []
        await listener.open(("127.0.0.1", "::1"), port, checked.append)
        assert port in {0, listener.port}
        assert {(each.host, each.port) for each in listener.addresses} == {
            ("127.0.0.1", listener.port),
            ("::1", listener.port),
        }
        # Another try checks them again, where another process took that port meanwhile.
        assert [each.host for each in checked] == ["127.0.0.1", "::1"] * (len(checked) // 2)
        assert checked if port == 0 else len(checked) == 2
        listener.accept()
        await listener.wait_closed()
        await discard(listener)


async def test_a_port_in_use() -> None:
    """Sockets and other servers of gRPC count; the error is that of every other protocol, and nothing is left open."""
    async with make(echo) as there:
        port = there.address.port
        with pytest.raises(ConfigError, match=f"port={port}: is in use at 127.0.0.1") as failed:
            await make(echo, port=port).start()
        assert failed.value.field == "port"
        assert failed.value.hint is not None


@pytest.mark.parametrize("port", [0, 1])
async def test_a_port_that_is_taken_meanwhile(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gRPC itself cannot bind is in use as well; where any port will do others are tried."""
    taken = [socket.create_server(("127.0.0.1", free_port())) for _ in range(2)]
    tries: list[int] = []

    def late(addresses: list[Address]) -> list[Address]:
        tries.append(len(tries))
        if len(tries) > len(taken):
            return addresses
        return [addresses[0], Address.of_socket(taken[len(tries) - 1].getsockname())]

    monkeypatch.setattr(listening, "_bindable", late)
    node = make(echo, port=port and free_port())
    if port:
        with pytest.raises(ConfigError, match="is in use"):
            await node.start()
    else:
        async with node, make(listen=False) as other:
            assert len(tries) == 3
            await within(other.send(Message(b"", node.address)))
    for each in taken:
        each.close()


async def test_other_kinds_of_hosts() -> None:
    """Only TCP addresses can be listened at, and what `check` says counts before anything is bound."""
    listener = GrpcListener(Nobody(), asyncio.get_running_loop(), 100)
    with pytest.raises(ConfigError, match="gRPC listens at TCP addresses only"):
        await listener.open(("inproc:here",), 0, lambda _: None)

    def refuse(address: Address) -> None:
        raise ConfigError("host", address.host, "not here")

    with pytest.raises(ConfigError, match="not here"):
        await listener.open(("127.0.0.1",), 0, refuse)
    assert not listener.closed


@pytest.mark.parametrize("hosts", [("0.0.0.0",), ("::",), ("0.0.0.0", "::")])
async def test_an_address_that_stands_for_all(hosts: tuple[str, ...]) -> None:
    """Only who comes by a family that is listened at gets in."""
    async with make(echo, host=hosts) as there, make(listen=False, dial="once") as node:
        for host, family in (("127.0.0.1", "0.0.0.0"), ("::1", "::")):
            asked = node.request(Message(b"x", Address("tcp", host, there.address.port)))
            if family in hosts:
                assert (await within(asked)).data == b"x"
            else:
                with pytest.raises(NotSent, match="accepts no more links"):
                    await within(asked)


async def test_closed_before_it_accepts() -> None:
    """The port is free again."""
    port = free_port()
    for _ in range(2):
        listener = GrpcListener(Nobody(), asyncio.get_running_loop(), 100)
        await listener.open(("127.0.0.1",), port, lambda _: None)
        await discard(listener)
        await within(listener.wait_ended())


async def test_a_loop_that_ends_while_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gRPC has not finished with is kept."""
    kept: set[object] = set()
    monkeypatch.setattr(listening, "KEPT", kept)
    listener = GrpcListener(Nobody(), asyncio.get_running_loop(), 100)
    await listener.open(("127.0.0.1",), 0, lambda _: None)
    listener.accept()
    await within(listener._starting)  # type: ignore[arg-type]
    listener.close()
    await asyncio.sleep(0)
    stopping: Any = listener._stopping
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert kept == {listener._server}
    await within(listener._server.stop(None))


async def test_the_end_waits_for_tasks_of_grpc() -> None:
    """The end waits for the tasks that gRPC has for a stream: those that outlast the loop keep their sockets for ever."""
    carrier = GrpcCarrier(nq.CommunicatorOptions())
    async with make(echo, carrier=carrier) as there, make(listen=False) as node:
        await within(node.request(Message(b"x", there.address)))
        (listener,) = carrier._listeners
        handling = tuple(listener._handling)
        found = [*handling, *tasks_of(listening._CALLS, *handling)]
        assert [getattr(each.get_coro(), "__qualname__", "") for each in found] == [
            "_handle_exceptions",
            "_schedule_rpc_coro",
        ]
        go_on = asyncio.Event()
        late = asyncio.create_task(go_on.wait())
        listener._handling.add(late)
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        await within(there.stop(drain=0))
        assert late.done()


async def test_no_more_than_max_connections() -> None:
    """A stream above it is turned away before anything is kept of it, and counted."""
    async with make(echo, max_connections=2) as there:
        async with stranger(there.address) as one, stranger(there.address) as two:
            await within(one.initial_metadata())
            await within(two.initial_metadata())
            async with stranger(there.address) as three:
                with pytest.raises(grpc.aio.AioRpcError, match="accepts no more links"):
                    await within(to_end(three))
            assert there.stats().turned_away.connections == 1
        await until(lambda: not there.stats().connections, "the end of both")
        async with make(listen=False) as node:
            await within(node.send(Message(b"", there.address)))


async def test_many_streams_of_one_channel_count_each() -> None:
    """The limit is one of streams, whoever they belong to."""
    async with make(echo, max_connections=3) as there:
        async with grpc.aio.insecure_channel(str(there.address)) as channel:
            calls = [channel.stream_stream(METHOD)() for _ in range(10)]
            await within(asyncio.gather(*(call.initial_metadata() for call in calls)))
            assert there.stats().connections == 3
            for call in calls:
                await call.done_writing()
            for call in calls:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await within(to_end(call))


async def test_strangers_that_say_nothing_or_garbage() -> None:
    """Each loses its stream: at once, or when its time is over; others do not notice."""
    async with make(echo, handshake_timeout=0.2) as there, make(listen=False) as node:
        async with stranger(there.address) as silent, stranger(there.address) as noisy:
            await within(noisy.write(b"\xff" * 10_000))
            for call in (noisy, silent):
                with pytest.raises(grpc.aio.AioRpcError, match="the link was cut"):
                    await within(to_end(call))
            assert (await within(node.request(Message(b"x", there.address)))).data == b"x"
        async with stranger(there.address, "/redpoll.nq/Other") as call:
            with pytest.raises(grpc.aio.AioRpcError, match="Method not found"):
                await within(call.read())


async def test_strangers_that_go_without_a_word() -> None:
    """A client that cancels its call or closes its channel is lost at once."""
    async with make(echo) as there:
        for _ in range(3):
            async with grpc.aio.insecure_channel(str(there.address)) as channel:
                call = channel.stream_stream(METHOD)()
                await within(call.initial_metadata())
                assert there.stats().connections == 1
                call.cancel()
            await until(lambda: not there.stats().connections, "the end of it")


async def test_bytes_that_are_no_http() -> None:
    """A port scan does no harm, and leaves nothing."""
    async with make(echo) as there, make(listen=False) as node:
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(1000)):
            with socket.create_connection(("127.0.0.1", there.address.port)) as sock:
                sock.sendall(data)
        assert (await within(node.request(Message(b"x", there.address)))).data == b"x"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:4711", Address("tcp", "127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", Address("tcp", "::1", 4711)),
        ("ipv6:[::ffff:10.0.0.1]:1", Address("tcp", "10.0.0.1", 1)),
        ("ipv6:%5Bfe80::1%25lo%5D:9", Address("tcp", "fe80::1%lo", 9)),
        ("unix:", Address("unix", "")),
    ],
)
async def test_where_a_stream_came_from(peer: str, address: Address) -> None:
    """What gRPC says of a peer is an address."""
    assert address_of(peer) == address
