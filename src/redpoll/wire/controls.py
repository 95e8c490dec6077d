"""Acknowledgements that are not plain, and control frames: what each of them does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import REFUSALS, ProtocolError, Refused, SendError
from redpoll.wire import attachment, libchirp, session
from redpoll.wire.bodies import LARGE, Bodies
from redpoll.wire.capabilities import Announcement
from redpoll.wire.frames import (
    ACK_ANSWER,
    ANSWERED,
    BLANK_IDENTITY,
    PREAMBLE,
    PREAMBLE_SIZE,
    Control,
    Goodbye,
    Kind,
    decode_refusal,
)

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.outgoing import Outgoing

__all__ = ["read_other", "stray"]

# Session frames of one read that are kept; one link is never owed more than a few.
_MAX_SESSION = 64

_ACK = int(Kind.ACK)
_NOOP = int(Kind.NOOP)
_RETRY = int(Kind.RETRY)
_WANTED = int(Kind.WANTED)
_REQ_ACK = int(Kind.REQ_ACK)
_GOODBYES = {bytes((each,)): each for each in Goodbye}


def read_other(link: Link, bodies: Bodies, shared: memoryview, source: Any, pos: int, end: int, now: float) -> int:
    """Read an acknowledgement or a control frame, and do what it says.

    Args:
        link: The link that it came over.
        bodies: What reads answers and fragments there.
        shared: The receive buffer.
        source: The same, or a copy of what is in it.
        pos: Where the frame begins.
        end: Where what was read ends.
        now: The time, on the owner's clock in seconds.

    Returns:
        Where the next frame begins, or -1 to wait for more.

    Raises:
        ProtocolError: The frame is illegal.
    """
    identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
    stop: int = pos + PREAMBLE_SIZE + size + header_size
    if link.announced is None:
        _plain(link, identity, serial, size + header_size, kind)
        return stop
    if kind & _NOOP:
        return _control(link, bodies, shared, source, pos, end)
    if kind & _REQ_ACK:
        raise ProtocolError("an acknowledgement that asks for an acknowledgement")
    if kind & ACK_ANSWER == ACK_ANSWER:
        return bodies.message(shared, source, pos, end, now)
    if header_size:
        raise ProtocolError("an acknowledgement with a header")
    if size > LARGE:
        raise ProtocolError(f"a refusal of {size} bytes")
    if stop > end:
        return -1
    out = link.in_flight.pop(serial, None)
    if out is None or out.identity != identity:
        stray(link, serial, out)
    elif kind & _RETRY:  # the same bit: a refusal
        link.window_used -= 1
        link.window_bytes_used -= out.size
        _refused(link, out, bytes(source[stop - size : stop]))
    else:
        link.window_used -= 1
        link.window_bytes_used -= out.size
        link.peer.confirmed(out)  # type: ignore[union-attr]
    return stop


def _refused(link: Link, out: Outgoing, body: bytes) -> None:
    peer = link.peer
    code, text = decode_refusal(body)
    if peer is not None and code == ANSWERED and out.kind & _WANTED:
        peer.done_unanswered(out)
        return
    error: SendError = REFUSALS.get(code, Refused)(out.message, text, peer.address if peer is not None else None)
    if peer is not None:
        peer.refused(out, error)


def _plain(link: Link, identity: bytes, serial: int, size: int, kind: int) -> None:
    """A frame that is no message, from a node that has not announced itself."""
    if size or kind & _REQ_ACK:
        raise ProtocolError("an acknowledgement or a probe with a header or data, or one that asks to be acknowledged")
    if kind & _NOOP:
        link.liveness.used = link.liveness.heard
        if kind == Control.ANNOUNCE and identity != BLANK_IDENTITY:
            announcement = Announcement.decode(identity, serial)
            if announcement is not None:
                link.announce(announcement)
    elif link.peer is not None:
        libchirp.confirmed(link.peer, identity)


def _control(link: Link, bodies: Bodies, shared: memoryview, source: Any, pos: int, end: int) -> int:
    identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
    stop: int = pos + PREAMBLE_SIZE + size
    if header_size or kind & (_REQ_ACK | _ACK):
        raise ProtocolError("a control frame with a header, or one that is an acknowledgement or asks for one")
    if kind == Control.FRAGMENT:
        return bodies.fragment(shared, source, pos, end)
    if size > LARGE:
        raise ProtocolError(f"a control frame with {size} bytes")
    if stop > end:
        return -1
    handle = _HANDLERS.get(kind)
    if handle is None:
        raise ProtocolError(f"a frame of unknown type 0x{kind:02x}")
    handle(link, identity, serial, bytes(source[stop - size : stop]))
    return stop


def stray(link: Link, serial: int, out: Outgoing | None) -> None:
    """An acknowledgement of nothing that waits is late, and only counted.

    Raises:
        ProtocolError: It names a message that waits by its serial and another one by its identity: nobody is late with
            that, and to put up with it would cost as much as there is in flight, each time.
    """
    peer = link.peer
    if peer is None:
        return
    if out is None:
        peer.counters.late += 1
        return
    # Back to its place: what is sent again is sent in the order of the first time.
    link.in_flight[serial] = out
    last = peer.serial
    in_order = sorted(link.in_flight.items(), key=lambda item: (item[0] - last - 1) & 0xFFFFFFFF)
    link.in_flight.clear()
    link.in_flight.update(in_order)
    raise ProtocolError(f"an acknowledgement of message {serial} under the identity of another")


def _announce(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    announcement = Announcement.decode(identity, serial)
    if announcement is not None:
        link.announce(announcement)


def _ping(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    # One that does not read what is on its way already would not read this either: nothing heaps up for it.
    if link.writable:
        link.control(Control.PONG, serial)


def _pong(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    """That it came is what it says; one with a number answers a ping that somebody may wait for."""
    link.pings.discard(serial)


def _goodbye(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    said = _GOODBYES.get(body)
    if said is None:
        raise ProtocolError(f"a goodbye that says {body[:16].hex() or 'nothing'}")
    if link.peer is not None:
        attachment.left(link.peer, link, said, serial)
    else:
        link.left(said, serial)


def _credit(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    if len(body) != 16:
        raise ProtocolError(f"a credit frame with {len(body)} bytes instead of 16")
    link.credited(body)


def _cancel(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    hard = body == b"\x01"
    if link.peer is not None:
        link.peer.cancelled(link, serial, hard=hard)
    elif len(link.early_cancels) < link.settings.window:
        # An honest one has no more messages to cancel: none of them can have ended.
        link.early_cancels.append((serial, hard))


def _session(link: Link, identity: bytes, serial: int, body: bytes) -> None:
    if body[:1] == session.SHOWN:
        shown = session.Shown.decode(body)
        if shown is None or link.shown is not None:
            link.memory.tally.sessions_refused += 1
            return
        link.shown = shown
        if link.peer is not None:
            session.note(link.peer, link)
    elif len(link.session) < _MAX_SESSION:
        link.session.append(body)


#: Control frame to what is done with it: (link, identity, serial, body). FRAGMENT is read apart: it may be large.
_HANDLERS = {
    Control.ANNOUNCE: _announce,
    Control.PING: _ping,
    Control.PONG: _pong,
    Control.GOODBYE: _goodbye,
    Control.CREDIT: _credit,
    Control.CANCEL: _cancel,
    Control.SESSION: _session,
}
