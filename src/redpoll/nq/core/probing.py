"""Probes of an address that could not be linked: does the server there use TLS, and the client not?"""

from __future__ import annotations

import asyncio
import ssl

from redpoll.address import Address

__all__ = ["answers", "speaks_tls"]

#: Seconds to wait for an answer.
_PATIENCE = 2.0

#: Types of TLS records: handshake and alert.
_RECORDS = b"\x16\x03", b"\x15\x03"


async def answers(address: Address, said: bytes, *beginnings: bytes) -> bool:
    """Return True if the server at an address answers certain bytes with others.

    Args:
        address: Where.
        said: The bytes.
        beginnings: What an answer may begin with; all are of one length.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(said)
                return await reader.readexactly(len(beginnings[0])) in beginnings
            finally:
                writer.transport.abort()
    except (OSError, EOFError):  # no server, or too short an answer
        return False


async def speaks_tls(address: Address) -> bool:
    """Return True if it answers the beginning of a TLS handshake with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    hello = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=address.host)
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return await answers(address, hello.read(), *_RECORDS)
