"""Liveness of the other end, judged by received bytes: handshake timeout, pings, idleness, stalled transfers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from redpoll.wire.settings import Settings

__all__ = ["MIN_PROGRESS", "Liveness", "StallDetector"]

#: Minimum progress of a transfer in `transfer_timeout`, and at the memory limit in `memory.STALL_TIMEOUT`, in bytes; less
#: counts as a stall.
MIN_PROGRESS = 16 * 1024

#: If a timer fires this late, in seconds, assume that the process stalled. Reading the pending bytes takes as long at
#: most.
_LAG = 0.1


class _Action(Enum):
    PING = auto()
    SUSPECT = auto()


class Liveness:
    """The clocks of one link. Any received byte proves life; only messages count as use.

    Attributes:
        last_received: When bytes were last received.
        last_used: When a message was last sent or received; idleness counts from then.
        idle_at: When to ask whether the link is unused.
        suspect: Whether a ping has been unanswered for `keepalive`.
    """

    __slots__ = (
        "_handshake_deadline",
        "_lagged",
        "_opened",
        "_pinged",
        "_settings",
        "idle_at",
        "last_received",
        "last_used",
        "suspect",
    )

    #: Send a ping.
    PING: Final = _Action.PING
    #: A ping was not answered in time: report it, and send another.
    SUSPECT: Final = _Action.SUSPECT

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self._opened = False
        self._handshake_deadline = now + settings.handshake_timeout
        self._pinged: float | None = None
        self._lagged = False
        self.last_received = now
        self.last_used = now
        self.idle_at = now + settings.reuse_time
        self.suspect = False

    def handshake_received(self) -> None:
        """Stop the handshake timeout."""
        self._opened = True
        self._lagged = False

    def unused(self, now: float) -> bool:
        """Return True if no message was sent or received for `reuse_time`, and note when to ask again."""
        reuse = self._settings.reuse_time
        used_until = self.last_used + reuse
        self.idle_at = used_until if used_until > now else now + reuse / 4
        return used_until <= now

    def next_deadline(self, announced: bool) -> float | None:
        """Return when to call `tick`; `announced` says whether the other end understands pings."""
        if not self._is_met(announced):
            return self._handshake_deadline
        keepalive = self._settings.keepalive
        if keepalive is None or not announced:
            return None
        if self._pinged is None:
            return self.last_received + keepalive
        return self._pinged + (3 * keepalive if self.suspect else keepalive)

    def tick(self, now: float, announced: bool) -> _Action | str | None:
        """Return PING or SUSPECT as the action to take, a text as the reason to close the link, or None."""
        due = self.next_deadline(announced)
        if due is None or now < due:
            return None
        if self._is_met(announced) and (self._pinged is None or self.last_received >= self._pinged):
            return self._check_ping(now)
        if not self._lagged and now - due > _LAG:
            # The process did not run when it should have. That is no silence of the other end, whose bytes may be
            # unread. Once only, so that a process that always lags times out as well.
            self._lagged = True
            self._excuse_lag(now)
            return None
        self._lagged = False
        if self._pinged is None:
            # No ping is sent before the handshake.
            what = "announcement" if self._opened else "handshake"
            return f"no {what} within {self._settings.handshake_timeout:g} s"
        if self.suspect:
            return f"ping timeout: nothing received for {now - self._pinged:.1f} s"
        self.suspect = True
        return Liveness.SUSPECT

    def _is_met(self, announced: bool) -> bool:
        """Return True if the other end sent all that begins a link."""
        return self._opened and (announced or self._settings.libchirp)

    def _excuse_lag(self, now: float) -> None:
        """Restart the current wait."""
        if self._pinged is None:
            self._handshake_deadline = now + _LAG
        else:
            self._pinged = now - (self._settings.keepalive or 0.0) if self.suspect else now

    def _check_ping(self, now: float) -> _Action | None:
        """Send a ping, or stop pinging since bytes were received."""
        if self._pinged is not None:
            # Nothing was received for long before the ping, so bytes with the same coarse time came after it.
            self._pinged = None
            self.suspect = self._lagged = False
            if now < self.last_received + (self._settings.keepalive or 0.0):
                return None
        self._pinged = now
        return Liveness.PING


@dataclass(slots=True, eq=False)
class StallDetector:
    """Watches the oldest message that has arrived in part; small messages that arrive at once are never seen."""

    #: Seconds in which it has to make progress; None for no limit.
    timeout: float | None
    #: When to check; None if nothing is watched.
    at: float | None = None
    _what: object = None
    _received: int = 0
    _lagged: bool = False

    def watch(self, what: object, received: int, now: float) -> None:
        """Restart the timeout.

        Args:
            what: Key of the watched message.
            received: Total bytes received over the link.
            now: The time.
        """
        self._what = what
        self._received = received
        self._lagged = False
        self.at = None if self.timeout is None else now + self.timeout

    def stalled(self, what: object, received: int, now: float, *, excused: bool) -> bool:
        """Return True if the link is to be closed.

        Args:
            what: Key of the oldest partial message; None if there is none.
            received: Total bytes received over the link.
            now: The time.
            excused: Whether this end does not read.
        """
        if what is None:
            self.at = None
            return False
        moved = received - self._received >= MIN_PROGRESS
        if self.at is None or what != self._what or moved or excused:
            self.watch(what, received, now)
            return False
        if now < self.at:
            return False
        if now - self.at > _LAG and not self._lagged:
            self._lagged = True
            self.at = now + _LAG
            return False
        return True
