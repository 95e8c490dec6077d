"""Handling of control frames, and of acknowledgements with a body or flags."""

from __future__ import annotations

from typing import Any

from redpoll.errors import REFUSALS, NoAnswer, PeerLost, ProtocolError, Refused
from redpoll.wire import libchirp, session
from redpoll.wire.bodies import LARGE, Bodies
from redpoll.wire.capabilities import Announcement
from redpoll.wire.frames import (
    ACK,
    ACK_ANSWER,
    ANSWERED,
    BLANK_IDENTITY,
    NOOP,
    PREAMBLE,
    PREAMBLE_SIZE,
    REQ_ACK,
    RETRY,
    WANTED,
    Control,
    Goodbye,
    decode_refusal,
)
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import note_shown, on_announcement, on_cancel, on_goodbye
from redpoll.wire.outgoing import Outgoing
from redpoll.wire.peer import Peer
from redpoll.wire.send_errors import with_cause

__all__ = ["MAX_UNANSWERED_PINGS", "read_other", "stray"]

# Maximum session frames kept per read; a correct peer sends only a few.
_MAX_SESSION = 64

#: Maximum pings of a peer that does not read that are answered once it does, per link.
MAX_UNANSWERED_PINGS = 8

_GOODBYES = {bytes((each,)): each for each in Goodbye}


def read_other(
    link: Link[Peer], bodies: Bodies, shared: memoryview, source: Any, pos: int, end: int, now: float
) -> int:
    """Read an acknowledgement or a control frame, and apply it.

    Args:
        link: The link that received it.
        bodies: The link's reader of answers and fragments.
        shared: The receive buffer.
        source: The same buffer, or a copy of its contents.
        pos: Where the frame begins.
        end: Where the received bytes end.
        now: The time, in seconds on the owner's clock.

    Returns:
        Where the next frame begins, or -1 to wait for more.

    Raises:
        ProtocolError: The frame is illegal.
    """
    identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
    stop: int = pos + PREAMBLE_SIZE + size + header_size
    if link.libchirp:
        _plain(link, identity, serial, size + header_size, kind)
        return stop
    if kind & NOOP:
        return _control(link, bodies, shared, source, pos, end)
    if kind & REQ_ACK:
        raise ProtocolError("acknowledgement that requests an acknowledgement")
    if kind & ACK_ANSWER == ACK_ANSWER:
        return bodies.message(shared, source, pos, end, now)
    if header_size:
        raise ProtocolError("acknowledgement with a header")
    if size > LARGE:
        raise ProtocolError(f"refusal of {size} bytes exceeds the limit of {LARGE}")
    if stop > end:
        return -1
    out, peer = link.in_flight.get(serial), link.peer
    if out is None or peer is None or out.identity != identity:
        stray(link, serial, out)
        return stop
    link.ended(out)
    if kind & RETRY:  # the same bit: a refusal
        _refused(peer, out, bytes(source[stop - size : stop]))
    elif kind & out.kind & WANTED:
        hint = "return a value there, or await message.respond(…), or use send()"
        peer.fail(out, NoAnswer(out.message, out.timeout, peer.address, "the handler there returned None", hint))
    else:
        peer.confirmed(out)
    return stop


def _refused(peer: Peer, out: Outgoing, body: bytes) -> None:
    code, text = decode_refusal(body)
    if code == ANSWERED and out.kind & WANTED:
        why, hint = "its answer was lost with the link", "answers are not kept: ask again if that does no harm"
        error = NoAnswer(out.message, out.timeout, peer.address, why, hint)
        peer.fail(out, with_cause(error, PeerLost(peer.address, why)))
    else:
        peer.refused(out, REFUSALS.get(code, Refused)(out.message, text, peer.address))


def _plain(link: Link[Peer], identity: bytes, serial: int, size: int, kind: int) -> None:
    """Apply a frame other than a message from a node that has not announced itself."""
    if size or kind & REQ_ACK:
        raise ProtocolError("acknowledgement or probe with a header or data, or that requests an acknowledgement")
    if kind & NOOP:
        link.liveness.last_used = link.liveness.last_received
        if kind == Control.ANNOUNCE and identity != BLANK_IDENTITY:
            _announce(link, identity, serial, b"")
    elif link.peer is not None:
        libchirp.confirmed(link.peer, identity)


def _control(link: Link[Peer], bodies: Bodies, shared: memoryview, source: Any, pos: int, end: int) -> int:
    identity, serial, size, header_size, kind = PREAMBLE.unpack_from(source, pos)
    stop: int = pos + PREAMBLE_SIZE + size
    if header_size or kind & (REQ_ACK | ACK):
        raise ProtocolError("control frame with a header or acknowledgement bits")
    if kind == Control.FRAGMENT:
        return bodies.fragment(shared, source, pos, end)
    if size > LARGE:
        raise ProtocolError(f"control frame of {size} bytes exceeds the limit of {LARGE}")
    if stop > end:
        return -1
    handle = _HANDLERS.get(kind)
    if handle is None:
        raise ProtocolError(f"unknown frame type 0x{kind:02x}")
    handle(link, identity, serial, bytes(source[stop - size : stop]))
    return stop


def stray(link: Link[Peer], serial: int, out: Outgoing | None) -> None:
    """Count an acknowledgement that matches nothing in flight as late.

    Raises:
        ProtocolError: Its serial matches a message in flight and its identity does not. A correct peer never sends
            that, and tolerating it would cost time in proportion to the messages in flight.
    """
    peer = link.peer
    if peer is None:
        return
    if out is None:
        peer.counters.late += 1
        return
    raise ProtocolError(f"acknowledgement of message {serial} with the identity of another")


def _announce(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    announcement = Announcement.decode(identity, serial)
    if announcement is not None and link.announcement_received(announcement) and link.peer is not None:
        on_announcement(link.peer, link)


def _ping(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    if link.writable:
        link.control(Control.PONG, serial)
    elif serial not in link.unanswered_pings and len(link.unanswered_pings) < MAX_UNANSWERED_PINGS:
        # A peer that does not read its pending output would not read this either: no pongs accumulate.
        link.unanswered_pings.append(serial)


def _pong(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    """Note a pong: its arrival proves life, and its number may answer a ping that the owner, or what is resent, waits for."""
    link.pings.pop(serial, None)
    if link.resend_pace is not None:
        link.resend_pace.arrived(serial)


def _goodbye(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    said = _GOODBYES.get(body)
    if said is None:
        raise ProtocolError(f"invalid goodbye: {body[:16].hex() or 'empty'}")
    if link.peer is not None:
        on_goodbye(link.peer, link, said, serial)
    else:
        link.goodbye_received(said, serial, 0)


def _credit(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    if len(body) != 16:
        raise ProtocolError(f"credit frame of {len(body)} bytes, expected 16")
    link.credit_received(body)


def _cancel(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    hard = body == b"\x01"
    if link.peer is not None:
        on_cancel(link.peer, link, serial, hard)
    elif len(link.arrived.cancels) < link.settings.window:
        # A correct peer has no more messages to cancel: none of them can have ended.
        link.arrived.cancels.append((serial, hard))


def _session(link: Link[Peer], identity: bytes, serial: int, body: bytes) -> None:
    if body[:1] == session.SHOWN:
        shown = session.Shown.decode(body)
        if shown is None or link.shown is not None:
            link.memory.tally.sessions_refused += 1
            return
        link.shown = shown
        if link.peer is not None:
            note_shown(link.peer, link)
    elif body[:1] == session.RECORD:
        if len(body) != 1 + session.RECORD_SIZE or link.record is not None:
            link.memory.tally.sessions_refused += 1
            return
        link.record_received(body[1:])
    elif len(link.arrived.session) < _MAX_SESSION:
        link.arrived.session.append(body)


#: Handlers of control frames: (link, identity, serial, body). FRAGMENT is not among them, since it may be large.
_HANDLERS = {
    Control.ANNOUNCE: _announce,
    Control.PING: _ping,
    Control.PONG: _pong,
    Control.GOODBYE: _goodbye,
    Control.CREDIT: _credit,
    Control.CANCEL: _cancel,
    Control.SESSION: _session,
}
