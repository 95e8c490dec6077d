"""Requests to a hub and their answers, in order, over one link after another."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any, Final

from redpoll.bus.engine import Watcher
from redpoll.bus.engines.handles import call
from redpoll.bus.engines.hub import protocol as p
from redpoll.errors import Expired, NotConfirmed, RedpollError
from redpoll.node.door import LayerNode, Peer

__all__ = ["Asking", "Request", "fail_future"]

#: Bytes of publishes that wait to be sent.
_WAITING_BYTES: Final = 64 * 2**20
#: Outcomes that are sent together, while their worker has more tasks to begin, and the seconds that the first of them waits.
_GATHERED: Final = 32
_SOON: Final = 0.001
#: Timeouts of answered requests that are kept, beside as many as counted at the last look.
_TIMEOUTS: Final = 1_024
#: Seconds beyond its timeout that the hub's own answer to a publish or a call may take.
_LATE: Final = 1.0
#: Seconds that operations without a timeout wait for a hub that is not there, from when they were begun or it was last
#: heard, unless the bus was opened with `wait`.
ABSENCE: Final = 30.0
_ABSENT_HINT: Final = (
    "start the hub, or correct its address; with connect(wait=True) operations wait for it without a limit"
)


class Request:
    """Something that the hub answers.

    Attributes:
        record: What was asked for.
        future: Done with the answer.
        again: Whether it may be asked for once more, where the answer may be lost.
        anew: Whether it is asked for by another request then, and this one does not count.
        sent: Whether the hub may have it.
        size: Bytes of a payload that waits to be sent.
        watcher: Of a publish.
        deadline: When its timeout was over, where the hub is to say so.
        absence: When its wait is over, if the hub is not there; None if it has a timeout, or waits without a limit.
        timeout: Its timeout.
        ends: Of a call: the time by which its outcome is there, whatever becomes of the hub.
        watchers: Of tasks that are published together: the numbers of their watchers, with these.
        ended: Of the end of a delivery: queue and task, which are asked for again with it.
    """

    __slots__ = (
        "absence", "again", "anew", "deadline", "ended", "ends", "future", "record", "sent", "size", "timeout", "watcher",
        "watchers",
    )  # fmt: skip

    def __init__(
        self,
        record: list[Any],
        future: asyncio.Future[Any],
        again: bool,
        size: int = 0,
        watcher: Watcher | None = None,
        ended: tuple[str, int] | None = None,
    ) -> None:
        self.record = record
        self.future = future
        self.again = again
        self.anew = False
        self.sent = False
        self.size = size
        self.watcher = watcher
        self.deadline: float | None = None
        self.absence: float | None = None
        self.timeout: float | None = None
        self.ends: float | None = None
        self.ended = ended
        self.watchers: list[tuple[int, Watcher | None]] = []


class Asking:
    """Sends records to the hub that it is linked to, and knows what has to be answered.

    Args:
        patient: Whether operations without a timeout wait without a limit for a hub that is not there.

    Attributes:
        loop: The loop.
        linked: Whether there is a hub that knows this client.
    """

    loop: asyncio.AbstractEventLoop
    _node: LayerNode

    def __init__(self, patient: bool) -> None:
        self._patient = patient
        self.linked = False
        self._peer: Peer | None = None
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._out: deque[list[Any]] = deque()
        self._scheduled = False
        self._gathering: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
        self._timeouts: list[tuple[float, int]] = []
        self._most_timeouts = _TIMEOUTS
        self._timer: asyncio.TimerHandle | None = None

    def say(self, *record: Any) -> None:
        """Send a record in this turn of the loop."""
        self._out.append(list(record))
        self._schedule()

    def say_if_linked(self, *record: Any) -> None:
        """Send what is said anyhow once the link is there again."""
        if self.linked:
            self.say(*record)

    def _schedule(self) -> None:
        if self.linked and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def _gather(self) -> None:
        """Send soon, with what is said until then."""
        if len(self._out) >= _GATHERED:
            self._schedule()
        elif self._gathering is None and not self._scheduled:
            self._gathering = self.loop.call_later(_SOON, self._schedule)

    def _flush(self) -> None:
        self._scheduled = False
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        waiting, left, peer = self._out, len(self._out), self._peer
        if left and peer is not None and self._has_room(peer):
            # No more of them are taken than there is room for: one that the node refuses waits for the next link.
            for body, part in p.pack(map(deque.popleft, repeat(waiting, left))):
                for record in part:
                    request = self._requests.get(record[1]) if record[0] in p.ANSWERED else None
                    if request is not None and request.record is record:
                        request.sent = True
                        self._waiting_bytes -= request.size
                self._node.post(peer, body, partial(self._sent, part))
                left -= len(part)
                if left and not self._has_room(peer):
                    break

    def _has_room(self, peer: Peer) -> bool:
        if not self.linked:
            return False
        if self._node.room(peer) > 0:
            return True
        self._scheduled = True
        self._node.when_room(peer, self._flush)
        return False

    def _sent(self, records: list[list[Any]], error: BaseException | None) -> None:
        """Note that requests that were never sent may be sent again."""
        if error is None or getattr(error, "sent", True):
            return
        for record in records:
            request = self._requests.get(record[1]) if record[0] in p.ANSWERED else None
            if request is not None and request.record is record:
                request.sent = False

    def _ask(
        self,
        kind: int,
        *rest: Any,
        again: bool,
        size: int = 0,
        watcher: Watcher | None = None,
        timeout: float | None = None,
        gather: bool = False,
        ended: tuple[str, int] | None = None,
        dies: bool = False,
    ) -> asyncio.Future[Any]:
        number = next(self._numbers)
        future: asyncio.Future[Any] = self.loop.create_future()
        request = Request([kind, number, *rest], future, again, size, watcher, ended)
        self._requests[number] = request
        if timeout is not None:
            request.timeout = timeout
            when = self.loop.time() + timeout
            self._limit(number, when)
            if dies:
                request.ends = when + _LATE
        elif not self._patient and kind in _IMPATIENT:
            request.absence = self.loop.time() + ABSENCE
            if not self.linked:
                self._limit_absence(number, request)
        self._push(request, gather)
        return future

    def _push(self, request: Request, gather: bool = False) -> None:
        request.sent = False
        self._waiting_bytes += request.size
        self._out.append(request.record)
        if gather:
            self._gather()
        elif not self._scheduled:
            self._schedule()

    def _unsay(self, request: Request) -> None:
        """Send a request no more that was not sent."""
        with suppress(ValueError):
            self._out.remove(request.record)
            self._waiting_bytes -= request.size

    def _expect(self, answer: Callable[[asyncio.Future[Any]], None], kind: int) -> int:
        number = next(self._numbers)
        future: asyncio.Future[Any] = self.loop.create_future()
        future.add_done_callback(answer)
        self._requests[number] = request = Request([kind], future, False)
        request.sent = request.anew = True
        return number

    def _give_up(self, request: Request, error: RedpollError) -> None:
        if request.watcher is not None:
            call("a watcher", request.watcher.gone, error)
        fail_future(request.future, error)

    # Timeouts

    def _limit(self, number: int, when: float) -> None:
        if len(self._timeouts) > self._most_timeouts:
            # Those of requests that were answered long before, or that waited before the last loss of the link.
            self._timeouts = [each for each in self._timeouts if self._is_current(*each)]
            heapq.heapify(self._timeouts)
            self._most_timeouts = 2 * len(self._timeouts) + _TIMEOUTS
        heapq.heappush(self._timeouts, (when, number))
        if self._timeouts[0][1] == number:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, _time_out, weakref.ref(self))

    def _is_current(self, when: float, number: int) -> bool:
        """Return True if a timeout may end its request, or the call that it began."""
        request = self._requests.get(number)
        if request is None:
            return self._ends(number) is not None
        return request.absence is None or when >= request.absence

    def _ends(self, number: int) -> float | None:
        """Return the time by which the outcome of a confirmed call is there; None if it is no such."""
        raise NotImplementedError

    def _expire(self, number: int) -> None:
        """Give a confirmed call its outcome: its time is over, and the hub does not say so."""
        raise NotImplementedError

    def _limit_absence(self, number: int, request: Request, heard: float = 0.0) -> None:
        if request.absence is not None:
            # A frozen hub was not heard for a while when its link is lost.
            request.absence = max(request.absence, heard + ABSENCE)
            self._limit(number, request.absence)

    @property
    def where(self) -> str:
        """The hub and its state, for errors."""
        raise NotImplementedError

    def expired(self, timeout: float | None) -> Expired:
        """Return the error of an operation that was not sent in time, as the hub is not there."""
        error = Expired(None, timeout, f"waiting for {self.where}")
        error.hint = _ABSENT_HINT
        return error

    def _time_out(self) -> None:
        now = self.loop.time()
        timeouts = self._timeouts
        while timeouts and timeouts[0][0] <= now:
            when, number = heapq.heappop(timeouts)
            request = self._requests.get(number)
            if request is None:
                ends = self._ends(number)
                if ends is not None and self.linked and now < ends:
                    heapq.heappush(timeouts, (ends, number))
                elif ends is not None:
                    self._expire(number)
                continue
            if request.absence is not None and (self.linked or when < request.absence):
                continue
            if request.sent and self.linked and request.deadline is None:
                # The hub says it itself.
                request.deadline = when
                heapq.heappush(timeouts, (now + _LATE, number))
                continue
            del self._requests[number]
            if request.sent:
                error: RedpollError = NotConfirmed(None, "the hub did not answer in time")
            else:
                self._unsay(request)
                error = self.expired(ABSENCE if request.absence is not None else request.timeout)
            self._give_up(request, error)
        while timeouts and not self._is_current(*timeouts[0]):
            heapq.heappop(timeouts)
        self._timer = self.loop.call_at(timeouts[0][0], _time_out, weakref.ref(self)) if timeouts else None


def _time_out(asking: weakref.ref[Asking]) -> None:
    """Time requests out. The timer does not keep an engine that was dropped."""
    found = asking()
    if found is not None:
        found._time_out()


_IMPATIENT: Final = frozenset({p.CALL, p.PUBLISH, p.STEPS, p.EVENT, p.TAKE, p.SUBSCRIBE, p.WATCH, p.CONSUME})
"""Operations that wait, with a limit, for a hub that is away."""


def fail_future(future: asyncio.Future[Any], error: BaseException) -> None:
    """End a future that may never be awaited, unless it has ended."""
    if not future.done():
        future.set_exception(error)
        future.exception()
