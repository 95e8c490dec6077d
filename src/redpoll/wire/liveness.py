"""Whether the other end of a link is there, judged by what was received: handshake in time, pings answered, idleness."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from redpoll.wire.settings import Settings

__all__ = ["Liveness"]

#: A timer that comes this much late, seconds, says that this process was busy. Reading what came takes as long at most.
_LAG = 0.1


class _Verdict(Enum):
    PING = auto()
    SUSPECT = auto()


class Liveness:
    """The clocks of one link. Any byte received counts as life; only messages count as use.

    Attributes:
        heard: When bytes were last received.
        used: When a message was last sent or received: what idleness is counted from.
        suspect: Whether a ping has been unanswered for `keepalive`.
    """

    __slots__ = ("_lagged", "_opened", "_pinged", "_ready_by", "_settings", "heard", "suspect", "used")

    #: Send a ping.
    PING: Final = _Verdict.PING
    #: A ping was not answered in time: tell, and send another one.
    SUSPECT: Final = _Verdict.SUSPECT

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self._opened = False
        timeout = settings.handshake_timeout
        self._ready_by = None if timeout is None else now + timeout
        self._pinged: float | None = None
        self._lagged = False
        self.heard = now
        self.used = now
        self.suspect = False

    def open(self) -> None:
        """The handshake is here."""
        self._opened = True
        self._lagged = False

    def next_deadline(self, announced: bool) -> float | None:
        """When to look again; `announced` tells whether the other end understands pings."""
        if not self._opened:
            return self._ready_by
        keepalive = self._settings.keepalive
        if keepalive is None or not announced:
            return None
        if self._pinged is None:
            return self.heard + keepalive
        return self._pinged + (3 * keepalive if self.suspect else keepalive)

    def tick(self, now: float, announced: bool) -> _Verdict | str | None:
        """Look: PING and SUSPECT say what to do, a text why the link is to be closed, None that all is well."""
        due = self.next_deadline(announced)
        if due is None or now < due:
            return None
        if self._opened and (self._pinged is None or self.heard >= self._pinged):
            return self._go_on(now)
        if not self._lagged and now - due > _LAG:
            # This process did not run when it should have: that is no silence of the other end, and what that sent in the
            # meantime is still to be read. Once: a process that always lags has to come to an end too.
            self._lagged = True
            self._begin_again(now)
            return None
        self._lagged = False
        if self._pinged is None:
            # Nothing is asked before the handshake.
            return f"no handshake within {self._settings.handshake_timeout:g} s"
        if self.suspect:
            return f"no sign of life for {now - self._pinged:.1f} s, pings unanswered"
        self.suspect = True
        return Liveness.SUSPECT

    def _begin_again(self, now: float) -> None:
        """Give the other end as long as what it was being waited for takes."""
        if self._pinged is None:
            self._ready_by = now + _LAG
        else:
            self._pinged = now - (self._settings.keepalive or 0.0) if self.suspect else now

    def _go_on(self, now: float) -> _Verdict | None:
        """Ask, or ask no more because something came."""
        if self._pinged is not None:
            # Nothing was heard for long before the ping: what has its very time, on a coarse clock, came after it.
            self._pinged = None
            self.suspect = self._lagged = False
            if now < self.heard + (self._settings.keepalive or 0.0):
                return None
        self._pinged = now
        return Liveness.PING
