"""Timeouts of a link: handshake, pings, idleness, and transfers that stall. Time is an argument."""

from __future__ import annotations

from redpoll.address import Address
from redpoll.errors import PeerLost
from redpoll.wire.frames import Control
from redpoll.wire.link import Link
from redpoll.wire.liveness import MIN_PROGRESS, Liveness

__all__ = ["next_deadline", "tick", "watch_transfer"]


def watch_transfer(link: Link) -> None:
    """Watch for a stalled transfer, now that a large body has begun."""
    detector = link.stall_detector
    if detector.at is None and detector.timeout is not None:
        detector.watch(link.incoming.oldest(link.bytes_received), link.bytes_received, link.liveness.last_received)
        link.arrived.attention = True


def next_deadline(link: Link) -> float:
    """Return when to call `tick()`."""
    alive = link.liveness.next_deadline(not link.libchirp)
    due = link.liveness.idle_at if alive is None else min(alive, link.liveness.idle_at)
    watched = link.stall_detector.at
    return due if watched is None else min(due, watched)


def tick(link: Link, now: float) -> PeerLost | bool:
    """Handle timeouts.

    Returns:
        The error to close the link with, or whether the other end has just become suspect.
    """
    if now >= link.liveness.idle_at:
        silent = now - link.liveness.last_received >= link.settings.reuse_time
        if silent and link.incoming.unfinished and not link.reading_paused:
            return _too_slow(link, f"transfer of a message stalled: nothing received in {link.settings.reuse_time:g} s")
        if link.liveness.unused(now) and not link.busy and (link.peer is None or not link.peer.awaits_link):
            link.leave(accept_all=True)
    excused = link.reading_paused or link.incoming.awaiting_peer
    oldest = link.incoming.oldest(link.bytes_received)
    if link.handshake is not None and link.stall_detector.stalled(oldest, link.bytes_received, now, excused=excused):
        timeout = link.settings.transfer_timeout
        return _too_slow(link, f"transfer of a message stalled: less than {MIN_PROGRESS} bytes in {timeout:g} s")
    verdict = link.liveness.tick(now, not link.libchirp)
    if isinstance(verdict, str):
        return PeerLost(_address(link), verdict)
    if verdict is not None:
        link.control(Control.PING)
    return verdict is Liveness.SUSPECT


def _address(link: Link) -> Address | None:
    return None if link.peer is None else link.peer.address


def _too_slow(link: Link, reason: str) -> PeerLost:
    link.memory.tally.slow_senders += 1
    return PeerLost(_address(link), reason)
