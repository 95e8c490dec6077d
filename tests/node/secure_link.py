"""An encrypted socket that plays a redpoll node, frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from redpoll import Node
from tests.interop.raw import NOOP, REQ_ACK, Frame, handshake
from tests.node.support import within

IDENTITY = b"I" * 16


def announcing(epoch: int) -> Frame:
    """The frame with which one run of a redpoll node announces itself."""
    return Frame(struct.pack("!2sBBHIHI", b"\xf2r", 1, 0, 1, 64, 64, 102_400), epoch, NOOP)


class SecureLink:
    """One encrypted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._serial = 1000

    def write(self, data: bytes) -> None:
        """Write what any node may."""
        self.writer.write(data)

    def send(self, frame: Frame) -> None:
        """Write one frame."""
        self.writer.write(frame.encode())

    def message(self, data: bytes, *, kind: int = REQ_ACK) -> Frame:
        """Send a message with a serial of its own; return it."""
        self._serial += 1
        frame = Frame(os.urandom(16), self._serial, kind, b"", data)
        self.send(frame)
        return frame

    async def read_frame(self) -> Frame:
        """The next frame."""
        preamble = await within(self._reader.readexactly(27))
        identity, serial, data_length, header_length, kind = struct.unpack("!16sIIHB", preamble)
        header = await within(self._reader.readexactly(header_length))
        return Frame(identity, serial, kind, header, await within(self._reader.readexactly(data_length)))

    async def skip(self, size: int) -> None:
        """Read what is of no interest."""
        await within(self._reader.readexactly(size))

    async def read_all(self) -> bytes:
        """Everything up to the end."""
        try:
            return await within(self._reader.read())
        except ConnectionError:
            return b""

    async def cut(self) -> None:
        """End it without a word."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def secure_dialling(
    node: Node[Any],
    certificate: Path | None,
    *,
    port: int = 0x4000,
    identity: bytes = IDENTITY,
    epoch: int | None = 77,
) -> AsyncIterator[SecureLink]:
    """A connection to a node, opened as another node would that listens at `port`; without an epoch it is libchirp."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    link = SecureLink(*await asyncio.open_connection("127.0.0.1", node.address.port, ssl=context))
    try:
        link.write(handshake(port, identity) + (announcing(epoch).encode() if epoch is not None else b""))
        await link.skip(18 + 27)
        yield link
    finally:
        await link.cut()
