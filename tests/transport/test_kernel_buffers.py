from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from redpoll import Message, Node
from redpoll.transport import kernel_buffers
from redpoll.transport.kernel_buffers import UNREAD, UNSENT, KernelBuffers
from redpoll.wire.transfer import LONG

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has these limits; elsewhere nothing is done"
)

TCP = socket.IPPROTO_TCP
TCP_INFO_SIZE = 152


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        with one, other:
            yield one, other


def unsent(sock: socket.socket) -> int:
    return sock.getsockopt(TCP, socket.TCP_NOTSENT_LOWAT)


def buffer(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def locked(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, 72)


def test_sending(pair: tuple[socket.socket, socket.socket]) -> None:
    """While a long body is written the system holds little that is not sent, and after it what it likes."""
    sock = pair[0]
    before = unsent(sock)
    buffers = KernelBuffers(sock)
    buffers.sending(False)
    assert unsent(sock) == before
    buffers.sending(True)
    assert unsent(sock) == UNSENT
    buffers.sending(False)
    assert unsent(sock) == before


def test_receiving(pair: tuple[socket.socket, socket.socket]) -> None:
    """While a long body comes in the receive buffer is small, and after it the system may enlarge it as it likes."""
    sock = pair[1]
    buffers = KernelBuffers(sock)
    buffers.receiving(False)
    before = buffer(sock)
    for _ in range(2):
        buffers.receiving(True)
        assert buffer(sock) == 2 * UNREAD != before
        assert locked(sock)
    buffers.receiving(False)
    assert not locked(sock)


@pytest.mark.parametrize(("name", "value"), [("NEAR", 0.0), ("_BUFFER_LOCK", 9999)])
def test_who_keeps_its_buffer(
    name: str, value: float, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small buffer would slow a link of a long round trip down, and for good where it cannot be enlarged again."""
    monkeypatch.setattr(kernel_buffers, name, value)
    sock = pair[1]
    before = buffer(sock)
    buffers = KernelBuffers(sock)
    buffers.receiving(True)
    buffers.receiving(False)
    assert (buffer(sock), locked(sock)) == (before, 0)


def test_the_round_trip_time_is_where_it_is_looked_for(pair: tuple[socket.socket, socket.socket]) -> None:
    """On loopback the shortest round-trip time, where tcp_info has it, is above nothing and below a tenth of a second."""
    one, other = pair
    other.sendall(b"x")
    one.recv(1)
    (microseconds,) = struct.unpack_from("=148xI", one.getsockopt(TCP, socket.TCP_INFO, TCP_INFO_SIZE))
    assert 0 < microseconds < 100_000


def test_what_is_no_tcp_socket_is_left_alone() -> None:
    """A unix socket, one that is closed, and a transport without a socket have nothing to set."""
    one, other = socket.socketpair()
    closed = socket.socket()
    closed.close()
    with one, other:
        for sock in (one, closed, None):
            buffers = KernelBuffers(sock)
            buffers.sending(True)
            buffers.receiving(True)
            buffers.receiving(False)


@pytest.mark.asyncio
async def test_long_bodies_set_the_limits_of_their_link() -> None:
    """A node sets the limits at both ends of a link while a long body is on its way over it, and takes them back."""
    set_to: list[tuple[str, bool]] = []

    class Noting(KernelBuffers):
        __slots__ = ()

        def sending(self, long: bool) -> None:
            set_to.append(("sending", long))
            super().sending(long)

        def receiving(self, long: bool) -> None:
            set_to.append(("receiving", long))
            super().receiving(long)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redpoll.transport.writing.KernelBuffers", Noting)
        async with Node(lambda message: None, port=0) as receiver, Node() as sender:
            await sender.send(Message(bytes(LONG), receiver.address))
            assert set_to == []
            await sender.send(Message(bytes(LONG + 1), receiver.address))
    for way in ("sending", "receiving"):
        told = [long for which, long in set_to if which == way]
        assert told[0]
        assert not told[-1]
