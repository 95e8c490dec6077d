"""Detection of stalled transfers: a sender may be slow, but not without limit."""

from __future__ import annotations

__all__ = ["MIN_PROGRESS", "StallDetector"]

#: Minimum progress of a transfer in `transfer_timeout`, and at the memory limit in `memory.STALL_TIMEOUT`, in bytes; less
#: counts as a stall.
MIN_PROGRESS = 16 * 1024

#: If a check is this late, in seconds, assume that the process stalled: pending bytes may be unread.
_LAG = 0.1


class StallDetector:
    """Watches the oldest message that has arrived in part; small messages that arrive at once are never seen.

    Attributes:
        at: When to check; None if nothing is watched.
    """

    __slots__ = ("_lagged", "_received", "_timeout", "_what", "at")

    def __init__(self, timeout: float) -> None:
        self.at: float | None = None
        self._timeout = timeout
        self._what: object = None
        self._received = 0
        self._lagged = False

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
        self.at = now + self._timeout

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
