"""What a stranger says first: the handshake, and the announcement behind it."""

from __future__ import annotations

import struct

from redpoll.wire.capabilities import VERSION, Announcement
from redpoll.wire.frames import PREAMBLE
from redpoll.wire.handshake import HANDSHAKE_SIZE, Handshake, is_alert, is_hello, is_tls
from redpoll.wire.link_lifecycle import attach
from tests.wire.support import NOOP, Sent, bare_link, feed, frame, handshake, make_peer, taken

__all__ = ["WORDS", "target"]

WORDS = (
    b"\xf2r",
    b"\xf2r\x01",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x15\x03\x03\x00\x02\x02\x28",
    *(struct.pack("!I", number) for number in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)),
)
_NOW = 50.0


def target(data: bytes) -> None:
    """Reads any identity and serial as an announcement or as libchirp's probe, and any 18 bytes as a handshake; never fails.

    The bytes are an identity and a serial, 20 of them. What an announcement says bounds what is sent to its node.
    """
    for size in range(len(data) + 1):
        # What is cut off may be what is whole.
        assert is_tls(data[:size]) or not is_tls(data)
        assert is_hello(data[:size]) or not is_hello(data)
    assert not is_alert(data) or is_tls(data)
    if len(data) >= HANDSHAKE_SIZE:
        assert Handshake.decode(data).encode() == data[:HANDSHAKE_SIZE]
    if len(data) < 20:
        return
    identity, (serial,) = data[:16], struct.unpack_from("!I", data, 16)
    found = Announcement.decode(identity, serial)
    if found is not None:
        assert 1 <= found.version <= VERSION
        again, number = PREAMBLE.unpack_from(found.encode())[:2]
        # In units, and at least one: what is less than a unit was told as none.
        assert Announcement.decode(again, number) == found._replace(window_bytes=max(found.window_bytes, 64 * 1024))
    _keep_to_it(identity, serial, found)


def _keep_to_it(identity: bytes, serial: int, found: Announcement | None) -> None:
    """No more than was announced goes out, and nothing but libchirp's frames to who announced nothing."""
    peer = make_peer()
    link = bare_link()
    feed(link, handshake() + frame(NOOP, serial, identity=identity), now=_NOW)
    assert link.libchirp == (found is None)
    attach(peer, link, _NOW)
    taken(link)
    sendings = [Sent(bytes(size)) for size in (0, 100, 2000, 100)]
    for out in sendings:
        peer.submit(out, _NOW)
    window = 1 if found is None else found.window
    assert len(link.in_flight) <= window
    for each in link.in_flight.values():
        assert found is None or each.size <= max(found.max_message_size, 1023)
    assert len(link.in_flight) + len(peer.queue) + sum(out.settled for out in sendings) == len(sendings)
