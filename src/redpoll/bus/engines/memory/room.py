"""A broker that engines of this process share, and the way of its effects to each of them, on its loop.

A room's lock is held for each call to its broker, and while effects for other engines are posted to them, so that these
receive them in order. Effects for the caller are carried out afterwards: callbacks may call back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from typing import Any, Final

from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.outputs import ADMITTED, CANCELLED, DELIVER, EVENT, NOTE, OUTCOME, PROGRESS, TOLD, Effect
from redpoll.bus.broker.queue import Peer
from redpoll.bus.engine import Clock, Observer, Timer, Watcher
from redpoll.bus.engines.base import EngineBase
from redpoll.bus.engines.handles import call, random_bits
from redpoll.bus.envelope import Outcome, OutcomeKind
from redpoll.bus.records import Event, Receipt, task_id
from redpoll.errors import NoRoute, RedpollError, UsageError
from redpoll.locks import new_lock
from redpoll.platforms import after_fork

__all__ = ["Member", "Room", "enter", "leave"]

_log = logging.getLogger("redpoll.bus")

#: Maximum deliveries, and events once for each subscription, per turn of the loop.
_TURN: Final = 256
#: Publishes in a row that hand over their task at once, after a turn that had one: a single caller saves the turn of each
#: call, and still leaves the loop to others. Many callers are faster in turns.
_AT_ONCE: Final = 16
#: Maximum pending events before a publish waits; and effects for another loop, before best-effort ones are dropped.
_PRESSURE: Final = 1_024
_MAIL: Final = 100_000


_TO_WATCHERS: Final = frozenset({OUTCOME, PROGRESS, ADMITTED})
#: Effects that are best effort; the others are bounded by the number of tasks.
_LOSSY: Final = frozenset({EVENT, PROGRESS, TOLD, NOTE})


class Room:
    """A broker, and the engines that share it.

    Args:
        name: The name; "" is private.
        limits: Of the broker.
        clock: Its time; None is the real one.

    Attributes:
        lock: Held while the broker is used; None where that is private.
        guard: The same for a with statement.
        members: The engines that are open.
        observers: The observers, each with its engine.
        numbers: For the names of peers.
    """

    def __init__(self, name: str, limits: Limits, clock: Clock | None) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.now: Callable[[], float] = time.monotonic if clock is None else clock.time
        # Nobody else is in a private room: it needs no lock.
        self.lock = new_lock() if name else None
        self.guard: AbstractContextManager[object] = self.lock or nullcontext()
        self.broker = Broker(os.urandom(4).hex(), random_bits(), limits, wall=self._wall)
        self.members: list[Member] = []
        self.observers: list[tuple[Member, Observer]] = []
        self.numbers = count(1)
        # The way of each message, without a look-up for each step of it.
        self.out = self.broker.out
        self.timers = self.broker.timers
        self.store = self.broker.tasks.store
        self.submit = self.broker.intake.submit
        self.publish = self.broker.intake.publish
        self.settle = self.broker.work.settle

    def _wall(self, now: float) -> float:
        """Return the seconds since 1970 of a time of the broker; a clock of tests tells them itself."""
        return now if self.clock is not None else now - time.monotonic() + time.time()

    def post(self, sender: Member, effects: Iterable[Effect]) -> list[Effect]:
        """Post effects for other engines, with the lock held.

        Returns:
            The effects for the sender.
        """
        mine: list[Effect] = []
        for effect in effects:
            kind = effect[0]
            if kind == NOTE:
                for member in {member for member, _ in self.observers}:
                    _give(member, effect, sender, mine)
            elif kind == EVENT:
                parts: dict[Member, list[Any]] = {}
                for each in effect[1]:
                    parts.setdefault(each.peer.owner, []).append(each)
                for member, part in parts.items():
                    _give(member, (kind, part, *effect[2:]), sender, mine)
            else:
                _give(effect[1].owner, effect, sender, mine)
        return mine


def _give(member: Member, effect: Effect, sender: Member, mine: list[Effect]) -> None:
    if member is sender:
        mine.append(effect)
    else:
        member.post(effect, sender)


_rooms: dict[str, Room] = {}
_lock = new_lock()
_members: weakref.WeakSet[Member] = weakref.WeakSet()


def enter(member: Member, name: str, limits: Limits, clock: Clock | None) -> Room:
    """Add a member to the room of a name; "" is a new one.

    Raises:
        UsageError: It is there with other limits or another clock.
    """
    with _lock:
        room = _rooms.get(name)
        if room is None:
            room = Room(name, limits, clock)
            if name:
                _rooms[name] = room
        elif (room.limits, room.clock) != (limits, clock):
            raise UsageError(f"memory://{name} is open with other limits or another clock", "give the same ones")
        room.members.append(member)
    return room


def leave(member: Member) -> None:
    """Remove a member; with the last one the room is gone."""
    room = member.room
    with _lock:
        with suppress(ValueError):
            room.members.remove(member)
        if not room.members and _rooms.get(room.name) is room:
            del _rooms[room.name]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # somebody may have held it, and never lets go of this copy
    _lock = new_lock()
    _rooms.clear()
    for member in _members:
        room: Room | None = getattr(member, "room", None)
        if room is not None:
            # Its tasks are the parent's, as is the thread that may have held the lock.
            room.lock, room.guard = None, nullcontext()
            for consumer in member.peer.consumers.values():
                consumer.held.clear()


after_fork(_after_fork)


class Member(EngineBase):
    """An engine's place in a room: its loop, and its pending effects.

    Attributes:
        room: The room.
        peer: The broker's peer.
        drained: Done when no task is held any more; None unless the engine drains.
    """

    room: Room
    peer: Peer

    def __init__(self, max_body: int) -> None:
        self.max_body = max_body
        self.drained: asyncio.Future[None] | None = None
        self._pending: deque[Effect] = deque()
        # True while pending effects are handed over, or a turn of the loop is to do so.
        self._flushing = False
        self._at_once = 0
        self._mail: deque[Effect] = deque()
        self._mailed = False
        self._pressed: list[asyncio.Future[Receipt]] = []
        self._timer: Timer | None = None
        self._armed = float("inf")
        _members.add(self)
        super().__init__()

    def __del__(self) -> None:
        """Warn of one that was not closed."""
        if not getattr(self, "closed", True):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    @contextmanager
    def turn(self) -> Iterator[tuple[Broker, float]]:
        """Use the broker, knowing the time; its effects are carried out at the end.

        Raises:
            Closed: It is closed.
            UsageError: This is a child of its process.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        room = self.room
        effects: list[Effect] = []
        try:
            with room.guard:
                try:
                    yield room.broker, room.now()
                finally:
                    effects = self.collect()
        finally:
            self.route(effects)

    def collect(self) -> list[Effect]:
        """Take the broker's effects, with the lock held: those for others are posted, the rest is for `route`."""
        room = self.room
        effects = room.out.effects
        if not effects:
            # Not the list itself: it is used again once the lock is free.
            return []
        room.out.effects = []
        return effects if room.lock is None else room.post(self, effects)

    # -- effects

    def route(self, effects: Iterable[Effect], *, publishing: bool = False) -> None:
        """Carry out effects that are for this engine, those of a single publish at once where that is faster."""
        pending = self._pending
        told: list[Effect] = []
        for effect in effects:
            (told if effect[0] in _TO_WATCHERS else pending).append(effect)
        # After that, since watchers may publish: their tasks come behind the pending ones.
        for effect in told:
            if effect[0] != OUTCOME:
                self._tell(effect)
                continue
            _, _, watcher, _, ending, outcome, detail = effect
            try:
                watcher.outcome(Outcome(ending, None, detail) if outcome is None else outcome)
            except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001  # a callback may raise anything
                _log.exception("a watcher failed")
        if pending and not self._flushing:
            self._flushing = True
            if publishing and self._at_once and pending[0][0] == DELIVER:
                self._at_once -= 1
                self._hand_over(1)
            else:
                self.loop.call_soon(self.flush)
        if self.room.timers.earlier:
            self.arm()

    def _tell(self, effect: Effect) -> None:
        if effect[0] == PROGRESS:
            call("a watcher", effect[2].progress, effect[4])
            return
        _, _, parked, number, error, known = effect
        waiting: asyncio.Future[Any]
        waiting, watcher = parked.owner
        if waiting.done():
            return
        if error is None:
            if isinstance(number, list):
                waiting.set_result([self.join(number[0], watcher)] if known else self.receipts(number))
            else:
                waiting.set_result(self.join(number, watcher) if known else Receipt(self.room.store, number))
        else:
            waiting.set_exception(error)
            waiting.exception()  # it may never be awaited

    def receipts(self, numbers: Iterable[int]) -> list[Receipt]:
        """Return the receipts of tasks that were published together."""
        return [Receipt(self.room.store, each) for each in numbers]

    def join(self, number: int, watcher: Watcher | None) -> Receipt:
        """Watch the task that had the key of a publish before."""
        if watcher is not None:
            try:
                with self.turn() as (broker, now):
                    broker.intake.watch(self.peer, number, watcher, now)
            except RedpollError as error:
                self.loop.call_soon(watcher.gone, error)
        return Receipt(self.room.store, number, True)

    def inputs(self, tasks: Iterable[int]) -> list[tuple[str, Outcome]]:
        """Return the ids and the outcomes of tasks that another one came after."""
        room = self.room
        with room.guard:
            found: list[tuple[int, Any]] = [(each, room.broker.tasks.results.find(each, room.now())) for each in tasks]
        # Without an outcome it was ended before it came here.
        return [
            (
                task_id(room.store, number),
                (ended.payload or Outcome(ended.kind, None, ended.detail)) if ended else Outcome(OutcomeKind.LOST),
            )
            for number, ended in found
        ]

    def post(self, effect: Effect, sender: Member) -> None:
        """Schedule an effect on this engine's loop; called on another one's, perhaps in another thread."""
        if len(self._mail) >= _MAIL and effect[0] in _LOSSY:
            for each in effect[1] if effect[0] == EVENT else ():
                each.owner.lost += 1
            return
        self._mail.append(effect)
        if self._mailed:
            return
        self._mailed = True
        try:
            if self.loop is sender.loop:
                self.loop.call_soon(self._read)
            else:
                self.loop.call_soon_threadsafe(self._read)
        except RuntimeError:
            # Its loop ended, and nobody closed it: its tasks are lost with it.
            self._mailed = False
            sender.report(self)

    def report(self, member: Member) -> None:
        """Let an open engine bury one that lost its loop: this one, if it is open still."""
        for each in (self, *self.room.members):
            if each is not member and not each.closed:
                with suppress(RuntimeError):  # another one that is gone
                    each.loop.call_soon_threadsafe(each.bury, member)
                    return
        member.closed = True
        leave(member)

    def bury(self, member: Member) -> None:
        """Remove an engine that lost its loop."""
        if member.closed:
            return
        if self.closed:
            self.report(member)
            return
        member.closed = True
        leave(member)
        room = self.room
        with self.turn() as (broker, now):
            room.observers = [each for each in room.observers if each[0] is not member]
            room.out.observed = bool(room.observers)
            broker.peers.leave(member.peer, now, goodbye=False)
            member._mail.clear()
        # The timers may have been its own to look after.
        self.arm()

    def _read(self) -> None:
        # Effects that are posted from now on are read in another turn, or in this one.
        self._mailed = False
        mail = self._mail
        effects = [mail.popleft() for _ in range(len(mail))]
        if not self.closed:
            self.route(effects)

    def read_last(self) -> None:
        """Carry out the posted effects for watchers at the end."""
        mail = [each for each in self._mail if each[0] in _TO_WATCHERS]
        self._mail.clear()
        self.route(mail)

    def flush(self) -> None:
        """Hand over pending effects, as many as one turn of the loop should."""
        self._at_once = _AT_ONCE if len(self._pending) == 1 else 0
        self._hand_over(_TURN)

    def _hand_over(self, left: int) -> None:
        pending = self._pending
        try:
            while pending and left > 0:
                effect = pending.popleft()
                kind = effect[0]
                left -= 1
                if kind == DELIVER:
                    effect[2].owner.deliver(effect[3], effect[4], effect[5])
                elif kind == EVENT:
                    _, subscriptions, subject, envelope, kept = effect
                    event = Event(subject, envelope, kept)
                    for each in subscriptions:
                        each.owner.take(event)
                    left -= len(subscriptions)
                elif kind == NOTE:
                    self._observed(effect)
                elif kind in {CANCELLED, TOLD}:
                    delivery = effect[2].owner.deliveries.get(effect[3])
                    if delivery is not None:
                        (delivery.cancel if kind == CANCELLED else delivery.tell)(effect[4])
                else:
                    effect[2].owner.stop(NoRoute(effect[2].queue.name, effect[3]))
        finally:
            self._flushing = bool(pending)
            if pending:
                self.loop.call_soon(self.flush)
        if len(pending) < _PRESSURE and self._pressed:
            pressed, self._pressed = self._pressed, []
            for future in pressed:
                if not future.done():
                    future.set_result(Receipt(self.room.store, 0))

    def flush_all(self) -> None:
        """Hand over all pending effects."""
        while self._pending:
            self.flush()

    def _observed(self, effect: Effect) -> None:
        _, _, what, queue, number, detail = effect
        task = task_id(self.room.store, number) if number else ""
        for member, observer in self.room.observers:
            if member is self:
                call("an observer", observer, what, queue, task, detail)

    def pressure(self) -> asyncio.Future[Receipt] | None:
        """Return a future that a publish has to wait for while too many events are pending."""
        if len(self._pending) < _PRESSURE:
            return None
        future: asyncio.Future[Receipt] = self.loop.create_future()
        self._pressed.append(future)
        return future

    def look_drained(self) -> None:
        """Settle `drained` if no task is held any more."""
        if self.drained is not None and not self.peer.held and not self.drained.done():
            self.drained.set_result(None)

    # -- time

    def arm(self) -> None:
        """Set the timer for the broker's next deadline."""
        if self.closed:
            # Another one looks after it.
            return
        room = self.room
        with room.guard:
            room.timers.earlier = False
            deadline = room.broker.deadline
        if deadline is None or deadline >= self._armed:
            return
        self.disarm()
        self._armed = deadline
        if room.clock is not None:
            self._timer = room.clock.call_at(deadline, self._advance)
        else:
            self._timer = self.loop.call_later(max(0.0, deadline - room.now()), self._advance)

    def disarm(self) -> None:
        """Set no timer."""
        self._armed = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self) -> None:
        self.disarm()
        if self.refusal() is not None:
            return
        try:
            with self.turn() as (broker, now):
                broker.advance(now)
        finally:
            self.arm()
