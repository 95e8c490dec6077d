"""The caller's watchers: for one reply, or for the parts of a stream."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Self

from redpoll.bus.awaitables import OutcomeFuture
from redpoll.bus.engine import Clock, Timer
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.feed import Feed
from redpoll.bus.rpc.server import NUMBER, SENT
from redpoll.errors import CallTimeout, PeerLost, RedpollError, TaskCancelled, TaskError

__all__ = ["Monitor", "PartsWatcher", "Reader", "Stream"]

WINDOW_SIZE: Final = 64
"""Parts of a stream that are under way at most."""
#: Seconds without a part after which credit is told again, at first and at most.
_AGAIN: Final = 1.0
_LONGEST: Final = 30.0


class Monitor(OutcomeFuture):
    """The future of a call that waits for signs of life as well.

    Args:
        clock: The engine's.
        period: Seconds without one after which the call fails.
    """

    def __init__(self, clock: Clock, period: float) -> None:
        super().__init__()
        self._clock = clock
        self._period = period
        self._timer: Timer | None = None
        self.add_done_callback(self._stop)

    def progress(self, envelope: Envelope) -> None:  # noqa: ARG002
        """Take a sign of life; the first one begins the watch, since a call may wait for its turn."""
        self._stop()
        self._timer = self._clock.call_at(self._clock.time() + self._period, self._miss)

    def _miss(self) -> None:
        self.outcome(Outcome(OutcomeKind.EXPIRED, None, f"no sign of life in {self._period:g} s"))

    def _stop(self, _: object = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Reader:
    """Turns outcomes into errors of calls.

    Args:
        payloads: The serializers.
        allowed: The exceptions that are rebuilt with their own types.
    """

    def __init__(self, payloads: Payloads, allowed: AllowedExceptions) -> None:
        self.payloads = payloads
        self._allowed = allowed

    def error(self, outcome: Outcome, name: str, timeout: float | None) -> Exception:
        """Return the error of an outcome other than a result.

        Args:
            outcome: The outcome.
            name: The target and the method.
            timeout: Seconds that it had.
        """
        kind, envelope, detail = outcome
        if kind is OutcomeKind.ERROR and envelope is not None:
            return self._allowed.rebuild(envelope)
        if kind is OutcomeKind.EXPIRED:
            return CallTimeout(name, timeout, detail)
        if kind is OutcomeKind.LOST:
            return PeerLost(name, detail or "the server that had begun the call is gone")
        return (TaskCancelled if kind is OutcomeKind.CANCELLED else TaskError)(name, detail)


class PartsWatcher:
    """Puts the parts of a stream into a feed, and detects lost ones."""

    __slots__ = ("_next", "_reader", "_title", "broken", "feed")

    def __init__(self, reader: Reader, title: str) -> None:
        self.feed: Feed[Envelope] = Feed()
        self._reader = reader
        self._title = title
        self._next = 0
        self.broken = False

    def progress(self, envelope: Envelope) -> None:
        """Take a part, the number of those that were sent, or a sign of life."""
        if envelope.meta is None or self.broken:
            return
        number = envelope.meta.get(NUMBER)
        if number is None:
            number = envelope.meta.get(SENT)
            if number == self._next:
                return
        if number != self._next:
            self._miss()
            return
        if len(self.feed.items) >= WINDOW_SIZE:
            self._break(f"its server sends more than {WINDOW_SIZE} parts ahead")
            return
        self._next += 1
        self.feed.push(envelope)

    def outcome(self, outcome: Outcome) -> None:
        """End."""
        if outcome.kind is not OutcomeKind.RESULT:
            self.feed.end(self._reader.error(outcome, self._title, None))
        elif outcome.envelope is not None and (outcome.envelope.meta or {}).get(NUMBER) != self._next:
            self._miss()
        self.feed.end()

    def gone(self, error: RedpollError) -> None:
        """Take the error for which there is no outcome."""
        self.feed.end(error)

    def _miss(self) -> None:
        self._break(f"part {self._next} of its answer was lost")

    def _break(self, problem: str) -> None:
        self.broken = True
        self.feed.end(PeerLost(self._title, problem))


class Stream:
    """The parts of an answer, as they come: ``async for part in bus.rpc.stream("calculator", "primes", {"below": 100})``.

    The call begins with the first part that is waited for. The server sends a few parts ahead, and waits until more are
    taken. Leaving ends the server's work: `aclose`, the end of its ``async with``, or dropping it, as a loop does that is
    left by ``break``. It is used by one task at a time.

    Args:
        begin: Sends the call with a watcher; returns its id.
        credit: Tells the server how many parts it may send in all: a number that is told again adds nothing.
        again: Does so in a task, which it returns.
        leave: Ends the call.
        watcher: Takes the parts.
        payloads: The serializers.
        clock: The engine's.
    """

    def __init__(
        self,
        begin: Callable[[PartsWatcher], Awaitable[str]],
        credit: Callable[[str, int], Awaitable[object]],
        again: Callable[[str, int], asyncio.Task[None]],
        leave: Callable[[str], object],
        watcher: PartsWatcher,
        payloads: Payloads,
        clock: Clock,
    ) -> None:
        self._begin = begin
        self._credit = credit
        self._again = again
        # The last of these.
        self._telling: asyncio.Task[None] | None = None
        self._clock = clock
        self._looks = False
        self._pause = _AGAIN
        # Parts that were taken at the last look.
        self._seen = 0
        self._leave = leave
        self._watcher = watcher
        self._payloads = payloads
        self._id: str | None = None
        self._taken = 0
        # Of these, parts for which the server has credit again.
        self._granted = 0
        self._over = False
        self._lost: RedpollError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next part.

        Raises:
            NoRoute: The target has no server.
            CallTimeout: Its time ended.
            PeerLost: The server is gone, or a part was lost.
            Closed: The bus was closed before the end came, behind the parts that came before.
            Exception: The server's exception, behind the parts that it sent before.

        Cancelling it loses no part. Before the engine has confirmed the call, it withdraws that, and the next wait makes
        another call.
        """
        if self._over:
            lost, self._lost = self._lost, None
            raise StopAsyncIteration if lost is None else lost
        try:
            if self._id is None:
                self._id = await self._begin(self._watcher)
            if self._taken - self._granted >= WINDOW_SIZE // 2:
                # Before a part is taken: cancelled here, none is lost. What is granted is sent all the same.
                self._granted += WINDOW_SIZE // 2
                await self._credit(self._id, WINDOW_SIZE + self._granted)
            if not self._looks:
                self._look_later()
            part = await self._watcher.feed.take()
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._watcher.broken:
                # It has not ended, as far as its server knows.
                self._end()
            self._over = True
            raise
        self._taken += 1
        return self._payloads.unpack(part)

    def _look_later(self) -> None:
        # The timer does not keep a stream that was dropped.
        self._looks = True
        self._seen = self._taken
        self._clock.call_at(self._clock.time() + self._pause, partial(_look, weakref.ref(self)))

    def _look(self) -> None:
        """Tell credit again where no part comes: lost links take it along, and parts too: the server says what it sent."""
        feed = self._watcher.feed
        if self._over or feed.ended or self._id is None:
            return
        if feed.items or self._taken > self._seen:
            self._pause = _AGAIN
        else:
            self._pause = min(2 * self._pause, _LONGEST)
            if self._telling is None or self._telling.done():
                self._telling = self._again(self._id, WINDOW_SIZE + self._granted)
        self._look_later()

    async def aclose(self) -> None:
        """Take no more parts; the server stops."""
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            if self._id is not None:
                self._leave(self._id)

    def lose(self, error: RedpollError) -> None:
        """End it, as the bus is closed: parts that came are still returned, then the end if that came too, or the error."""
        if self._over:
            return
        self._watcher.gone(error)
        if self._id is None:
            self._over = True
            self._lost = error
        else:
            self._leave(self._id)
            self._leave = lambda _: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Take no more parts."""
        self._end()

    def __del__(self) -> None:
        self._end()


def _look(stream: weakref.ref[Stream]) -> None:
    found = stream()
    if found is not None:
        found._look()
