"""TLS without a socket, and the thread that sends heartbeats: without a broker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

import pytest

from redpoll.bus.engines.amqp.pulse import Beat
from redpoll.bus.engines.amqp.seal import Seal
from redpoll.bus.engines.amqp.wire import HEARTBEAT
from redpoll.testing.certificates import Certificates


class Server:
    """The other end of a seal: OpenSSL over memory, as there."""

    def __init__(self, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.issue("server", names=["localhost"]))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.open = False

    def take(self, data: bytes) -> bytes:
        """Take bytes, and return what they mean."""
        self._incoming.write(data)
        said = b""
        try:
            if not self.open:
                self.tls.do_handshake()
                self.open = True
            while True:
                said += self.tls.read(1_000_000)
        except ssl.SSLWantReadError:
            return said

    def sent(self) -> bytes:
        """Return what it has to send."""
        return self._outgoing.read()


def shaken(certificates: Certificates) -> tuple[Seal, Server]:
    """Return both ends behind their handshake."""
    seal, server = Seal(ssl.create_default_context(cafile=certificates.ca), "localhost"), Server(certificates)
    seal.receive(b"")
    while not (seal.open and server.open):
        server.take(seal.seal(b""))
        seal.receive(server.sent())
    return seal, server


def test_a_seal_says_the_same_however_its_bytes_are_split(redpoll_pki: Certificates) -> None:
    """What the server encrypts is the same whole, byte by byte, and with its goodbye behind it."""
    seal, server = shaken(redpoll_pki)
    server.tls.write(b"whole")
    assert seal.receive(server.sent()) == b"whole"
    server.tls.write(b"split")
    assert b"".join(seal.receive(bytes([each])) for each in server.sent()) == b"split"
    server.tls.write(b"the last")
    with pytest.raises(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert seal.receive(server.sent()) == b"the last"


def test_a_seal_refuses_who_is_not_trusted_and_what_is_no_tls(redpoll_pki: Certificates) -> None:
    """A certificate of another CA is an error of which the other end is told by an alert; so are bytes that are no TLS."""
    seal, server = Seal(ssl.create_default_context(cafile=redpoll_pki.another().ca), "localhost"), Server(redpoll_pki)
    seal.receive(b"")
    server.take(seal.seal(b""))
    with pytest.raises(ssl.SSLCertVerificationError):
        seal.receive(server.sent())
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
        server.take(seal.seal(b""))
    seal = Seal(ssl.create_default_context(), "localhost")
    seal.receive(b"")
    with pytest.raises(ssl.SSLError):
        seal.receive(b"AMQP\0\0\x09\x01")


@pytest.mark.asyncio
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("taken", [0, 3, 1_000])
async def test_the_thread_and_the_loop_share_a_connection(
    redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch, encrypted: bool, taken: int
) -> None:
    """A heartbeat of the thread stands between what the loop writes, whole, also if the system took only a part of it."""
    write = os.write

    def partly(file: int, data: bytes) -> int:
        if not taken:
            raise BlockingIOError
        return write(file, data[:taken])

    seal, server = shaken(redpoll_pki) if encrypted else (None, None)
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
    beat = Beat(transport, seal)
    monkeypatch.setattr(os, "write", partly)
    beat.write(b"begin ")
    # In the place of the thread, which begins once nothing was written for some seconds.
    beat.look()
    beat.look()
    monkeypatch.undo()
    beat.write(b" end")
    beat.close()
    beat.look()
    transport.close()
    await asyncio.sleep(0)
    got = there.recv(10_000)
    if server is not None:
        got = server.take(got)
    # Where a part of the first one waits, no second one is sent.
    assert got == b"begin " + HEARTBEAT * (2 if taken > 100 else 1) + b" end"
    there.close()
