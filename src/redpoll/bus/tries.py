"""Retries of messages that were not taken: the errors, the number, the time."""

from __future__ import annotations

from redpoll.bus.awaitables import sleep
from redpoll.bus.engine import Clock
from redpoll.errors import Expired, LinkError, NotAuthorized, NotConfirmed, NotSent

__all__ = ["Tries"]


class Tries:
    """The tries to send one message.

    Args:
        clock: The engine's.
        timeout: Seconds for all of them; None is no limit.
        retry: The number of times it is sent again. None: until its time is over.
        what: The operation, for errors.
        pause: Seconds before the second try; each one after that is twice as long.
        longest: Seconds between two tries at most.
        harmless: True if it is sent again also where it may have been taken: a second one is refused by its key, or allowed.
    """

    __slots__ = ("_clock", "_covered", "_longest", "_pause", "_retry", "_timeout", "_what", "began")

    def __init__(
        self,
        clock: Clock,
        timeout: float | None,
        retry: int | None,
        what: str,
        pause: float,
        longest: float,
        harmless: bool = False,
    ) -> None:
        self._covered = (NotSent, LinkError, NotConfirmed) if harmless else (NotSent, LinkError)
        self.began = clock.time()
        self._clock = clock
        self._timeout = timeout
        self._retry = retry
        self._what = what
        self._pause = pause
        self._longest = longest

    def covers(self, error: Exception) -> bool:
        """Return True if it is sent again after an error, which uses up a try."""
        if self._retry == 0 or not isinstance(error, self._covered):
            return False
        if isinstance(error, Expired | NotAuthorized | TimeoutError):
            return False
        if self._retry is not None:
            self._retry -= 1
        return True

    def left(self) -> float | None:
        """Seconds that are left; None is no limit.

        Raises:
            Expired: None are.
        """
        if self._timeout is None:
            return None
        left = self._timeout - (self._clock.time() - self.began)
        if left <= 0:
            raise Expired(None, self._timeout, self._what)
        return left

    async def pause(self) -> None:
        """Wait until the next try, longer each time."""
        await sleep(self._clock, self._pause)
        self.skip()

    def skip(self) -> None:
        """Do not wait this time."""
        self._pause = min(2 * self._pause, self._longest)
