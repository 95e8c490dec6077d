"""A bare socket that speaks libchirp's wire byte by byte.

Frames are packed and read by code of the tests' own: what src has wrong must not be wrong here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Seconds after which something that has to happen is taken as not happening.
BOUND = 15.0

REQ_ACK, ACK, NOOP = 0x01, 0x02, 0x04

Host = Literal["127.0.0.1", "::1"]


@dataclass(frozen=True)
class Frame:
    """One frame as it is on the wire."""

    identity: bytes
    serial: int
    kind: int
    header: bytes = b""
    data: bytes = b""

    def encode(self) -> bytes:
        preamble = struct.pack("!16sIIHB", self.identity, self.serial, len(self.data), len(self.header), self.kind)
        return preamble + self.header + self.data


#: As a redpoll node announces itself: a NOOP with an identity and a serial that libchirp never sends.
ANNOUNCEMENT = Frame(b"\xf2r\x01" + bytes(range(13)), 0x5EED5EED, NOOP)


def handshake(port: int, identity: bytes) -> bytes:
    return struct.pack("!H16s", port, identity)


class DisconnectedError(Exception):
    """The other end closed, or reset, the connection; `.read` is what came before."""

    def __init__(self, read: bytes) -> None:
        super().__init__(f"closed after {len(read)} bytes, at the end {read[-64:]!r}")
        self.read = read


class RawLink:
    """One connection, byte by byte: every `write` is exactly one write to the socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._serial = 1000

    @classmethod
    async def dial(cls, host: str, port: int) -> RawLink:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(BOUND):
                await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Close so that the other end gets an error, as when the process died with something unread."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def shrink_receive_buffer(self) -> None:
        """Let the kernel take little that was not read here, so that a sender soon sees the end of it."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def write(self, data: bytes) -> None:
        sent = self._socket.send(data)
        assert sent == len(data), "the kernel took only a part: not one write"

    async def write_all(self, data: bytes) -> None:
        """Write what is too long for one write."""
        async with asyncio.timeout(BOUND):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def send(self, frame: Frame) -> None:
        self.write(frame.encode())

    def message(
        self, data: bytes = b"", *, identity: bytes | None = None, header: bytes = b"", kind: int = REQ_ACK
    ) -> Frame:
        """Make a message with a serial, and an identity, of its own."""
        self._serial += 1
        return Frame(identity or os.urandom(16), self._serial, kind, header, data)

    def acknowledge(self, frame: Frame) -> None:
        self._serial += 1
        self.send(Frame(frame.identity, self._serial, ACK))

    async def read(self, count: int, within: float = BOUND) -> bytes:
        """Read exactly `count` bytes."""
        loop = asyncio.get_running_loop()
        data = b""
        async with asyncio.timeout(within):
            while len(data) < count:
                try:
                    piece = await loop.sock_recv(self._socket, min(count - len(data), 1 << 20))
                except ConnectionError:
                    piece = b""
                if not piece:
                    raise DisconnectedError(data)
                data += piece
        return data

    async def read_available(self) -> bytes:
        """What the next read brings: on loopback, what the other end wrote in one write."""
        async with asyncio.timeout(BOUND):
            return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)

    async def read_handshake(self) -> tuple[int, bytes]:
        port, identity = struct.unpack("!H16s", await self.read(18))
        return port, identity

    async def read_frame(self, within: float = BOUND) -> Frame:
        identity, serial, data_length, header_length, kind = struct.unpack("!16sIIHB", await self.read(27, within))
        header = await self.read(header_length)
        return Frame(identity, serial, kind, header, await self.read(data_length))

    async def read_all(self) -> bytes:
        """Read to the end of the connection, which the other side has to bring about."""
        data = b""
        while True:
            try:
                data += await self.read(1)
            except DisconnectedError:
                return data

    async def silent(self, seconds: float) -> bool:
        """True if the connection stays open and nothing arrives for so long."""
        try:
            await self.read(1, within=seconds)
        except TimeoutError:
            return True
        except DisconnectedError:
            return False
        return False

    async def consumed(self) -> None:
        """Wait until the process at the other end has read everything written here.

        So the next write cannot be merged with the last in one read there. Both ends are on this machine, and the
        kernel's table of connections says what waits unread at the other end.
        """
        here, there = self._socket.getsockname()[:2], self._socket.getpeername()[:2]
        async with asyncio.timeout(BOUND):
            while _unread(there, here) or _unsent(here, there):  # noqa: ASYNC110  # another process reads
                await asyncio.sleep(0.0005)


class RawListener:
    """A listening socket that plays a node."""

    def __init__(self, host: Host = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # None that the system gives out: whoever still dials the one that had it before would come here.
        self._socket = socket.create_server((host, free_port()), family=family)
        self._socket.setblocking(False)
        self.host = host
        self.port = int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()

    async def accept(self, within: float = BOUND) -> RawLink:
        async with asyncio.timeout(within):
            connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        return RawLink(connection)

    async def accepts_within(self, seconds: float) -> bool:
        """True if somebody dials within so long."""
        try:
            (await self.accept(seconds)).close()
        except TimeoutError:
            return False
        return True


def _table_rows(local: tuple[str, int], remote: tuple[str, int]) -> list[re.Match[str]]:
    """Rows of the kernel's table for the socket at `local` that is connected to `remote`."""
    table = Path("/proc/net/tcp6" if ":" in local[0] else "/proc/net/tcp").read_text(encoding="ascii")
    ends = re.escape(f"{_table_address(local)} {_table_address(remote)}")
    return list(re.finditer(rf"{ends} [0-9A-F]{{2}} ([0-9A-F]{{8}}):([0-9A-F]{{8}})", table))


def _table_address(address: tuple[str, int]) -> str:
    """An address as the kernel's table has it: 32-bit words in the machine's byte order."""
    packed = ipaddress.ip_address(address[0]).packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _unread(local: tuple[str, int], remote: tuple[str, int]) -> int:
    return sum(int(row[2], 16) for row in _table_rows(local, remote))


def _unsent(local: tuple[str, int], remote: tuple[str, int]) -> int:
    return sum(int(row[1], 16) for row in _table_rows(local, remote))


@contextlib.asynccontextmanager
async def raw_listener(host: Host = "127.0.0.1") -> AsyncIterator[RawListener]:
    """A listening socket, closed at the end."""
    listener = RawListener(host)
    try:
        yield listener
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def accepted(listener: RawListener, identity: bytes = b"I" * 16) -> AsyncIterator[RawLink]:
    """The next connection that is dialled to `listener`, both handshakes done."""
    link = await listener.accept()
    try:
        link.write(handshake(listener.port, identity) + ANNOUNCEMENT.encode())
        await link.read_handshake()
        yield link
    finally:
        link.close()


async def first_frame(*links: RawLink) -> tuple[Frame, RawLink]:
    """The next frame on any of these connections, and which one it came on."""
    reads = {asyncio.ensure_future(link.read_frame()): link for link in links}
    done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    for read in waiting:
        read.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    (first,) = done
    return await first, reads[first]
