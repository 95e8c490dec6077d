"""Turns of a hub: the writes of a turn are stored, and confirmations sent once they are on disk."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

from redpoll.bus.broker import Limits
from redpoll.bus.broker import outputs as out
from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.queue import DEADLINE, Parked, Queue, Task
from redpoll.bus.engines.handles import random_bits
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.clients import Client, Watch
from redpoll.bus.engines.hub.recent import Recent
from redpoll.bus.engines.hub.store import Store
from redpoll.bus.envelope import OutcomeKind
from redpoll.errors import BusError, RedpollError, StoreError
from redpoll.node.door import Peer
from redpoll.node.reports import Repeated

__all__ = ["Turns", "seconds_left"]

_log = logging.getLogger("redpoll.bus")

_Claim: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]

#: Bytes of outcomes that are sent together to the worker of the task that comes after theirs.
_PART: Final = 2**20
#: Stored outcomes that are read at a time for those that watch.
_RECALLS: Final = 16


class Turns:
    """The broker of a hub, its disk, and its clients, turn by turn of the loop.

    Args:
        store: Its store, open.
        limits: Those of the broker.

    Attributes:
        store: The store.
        broker: The broker, as it was when the store was closed last.
        clients: The clients that said hello.
        stopped: Whether it takes over nothing more, as the store closes.
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store = store
        with _uncollected():
            self.broker = Broker.restored(
                store.load(),
                time.monotonic(),
                store.name,
                random_bits(),
                limits,
                epoch=store.epoch,
                tasks=store.load_tasks(),
                serial=store.serial,
                wall=_wall,
            )
        self.broker.schedules.has_room = self.has_room
        self.clients: dict[Peer, Client] = {}
        self.stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")
        self._recent = Recent(self.broker, store.recent)
        # Turns that wait for the disk: for each one its writes, and the records to be sent once they are on disk.
        self._unsynced: deque[tuple[list[out.Write], list[_Claim]]] = deque()
        # True if nobody waits for the last of them.
        self._patient = False
        # Of this turn: records to be sent then, whether anybody waits for one, and deliveries whose bodies are being read.
        self._claims: list[_Claim] = []
        self._soon = False
        self._wanted: list[int] = []
        self._gaps: list[tuple[Client, list[Any]]] = []
        # Bytes of tasks that had room in this turn.
        self._asked = 0
        self._behind: set[Queue] = set()
        # Watchers whose outcomes are to be read, and how many are being read.
        self._recalls: deque[tuple[Client, Watch, int]] = deque()
        self._recalling = 0
        # They end with the store.
        self._reading: set[asyncio.Task[None]] = set()
        # Defects of the hub by the kind of request; there are few.
        self._defects: dict[object, Repeated] = {}
        self.end()

    def claim(self, client: Client, durable: bool, *record: Any) -> None:
        """Send a record, after the next commit if it confirms something durable."""
        if durable:
            self._claims.append((client.say, record))
            self._soon = True
        else:
            client.say(*record)

    def reply(self, client: Client, durable: bool, request: int, value: Any, *, late: bool = False) -> None:
        """Answer a request, as `claim` does, unless it wants no answer; late if nobody waits for that."""
        if not request:
            return
        say = client.say_late if late else client.say
        if durable:
            self._claims.append((say, (p.REPLY, request, value)))
            self._soon = self._soon or not late
        else:
            say(p.REPLY, request, value)

    def fail_by_defect(self, client: Client, request: int, what: object, error: Exception) -> None:
        """Log a defect of the hub, once a second for each kind of request, and answer the request with an internal error."""
        if what not in self._defects:
            self._defects[what] = Repeated(partial(_log_defect, what))
        self._defects[what].note((client.member.name, error))
        client.fail(request, BusError(f"internal error of the hub at {what!r}: its log has the traceback"))

    def has_room(self, size: int) -> bool:
        """Return whether the disk has room for new tasks of so many bytes, behind those that had room in this turn."""
        asked = self._asked + size + CHARGE
        if not self.store.has_room(asked):
            return False
        self._asked = asked
        return True

    def watch_known(self, client: Client, request: int, number: int) -> None:
        """Watch the task that had the key of a publish before."""
        with suppress(RedpollError):  # its outcome is not kept; the client asks when it has the number
            self.broker.intake.watch(client.member, number, Watch(request, True), time.monotonic())

    def end(self) -> None:
        """End a turn: store its writes, send its confirmations once they are on disk, and all other records at once."""
        self.carry()
        writes = self.broker.out.take_writes()
        claims, self._claims = self._claims, []
        soon, self._soon = self._soon, False
        self._asked = 0
        if self._wanted:
            self._patient = False
            self._unsynced.append((writes, claims))
            ahead = [task for queue in self._behind for task in self._recent.ahead(queue)]
            wanted = self._wanted + [task.id for task in ahead]
            self.store.write(writes, self._synced, wanted, partial(self._fill, self._gaps, ahead))
            self._wanted, self._gaps = [], []
            self._behind.clear()
        elif writes or (soon and self._patient and self._unsynced):
            self._patient = not soon
            self._unsynced.append((writes, claims))
            self.store.write(writes, self._synced, soon=soon)
        elif self._unsynced:
            # It may be about what an earlier turn wrote.
            self._unsynced[-1][1].extend(claims)
        else:
            for say, record in claims:
                say(*record)
        if self.broker.timers.earlier:
            self._arm()

    def stop(self) -> None:
        """Stop timers and deliveries: nothing is written any more."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for defects in self._defects.values():
            defects.close()
        for client in self.clients.values():
            client.member.open = False

    def look_for_observers(self) -> None:
        """Look whether any client wants notes."""
        self.broker.out.observed = any(each.observes for each in self.clients.values())

    def _fill(self, gaps: list[tuple[Client, list[Any]]], ahead: list[Task], bodies: list[bytes | StoreError]) -> None:
        for (client, record), body in zip(gaps, bodies, strict=False):
            if isinstance(body, StoreError):
                _, consumer, token, task, *_ = record
                _log.error("task %s is given up: %s", self.broker.tasks.text(p.id_number(task)), body)
                client.say(*record[:-1], b"")
                record[:] = p.INPUTS, consumer, token, [_unreadable(task, body)]
            else:
                record[-1] = body
            client.filled()
        self._recent.read(ahead, bodies[len(gaps) :])

    def _synced(self) -> None:
        writes, claims = self._unsynced.popleft()
        for say, record in claims:
            say(*record)
        self._recent.stored(writes)

    # Effects of the broker

    def carry(self) -> None:
        """Send what the broker did so far in this turn, ahead of what is said next."""
        for effect in self.broker.out.take():
            self._carry(effect)

    def _carry(self, effect: out.Effect) -> None:
        kind = effect[0]
        if kind == out.EVENT:
            _, subscriptions, subject, payload, kept = effect
            groups: dict[Client, list[int]] = {}
            for each in subscriptions:
                if each.peer.owner is not None:
                    groups.setdefault(each.peer.owner, []).append(each.owner)
            for client, numbers in groups.items():
                client.say(p.EVENTS, numbers, subject, payload, kept)
            return
        if kind == out.NOTE:
            _, _, what, queue, number, detail = effect
            for client in self.clients.values():
                if client.observes:
                    client.say(p.NOTE, what, queue, p.id_bytes(number), detail)
            return
        client = effect[1].owner
        if client is None:
            return
        if kind == out.DELIVER:
            _, _, consumer, token, task, payload = effect
            attempt = 1 if task.extra is None else task.extra.attempts + 1
            if task.extra is not None and task.extra.after:
                self._bring(client, consumer.owner, token, task.extra.after)
            record = [p.DELIVER, consumer.owner, token, task.id.to_bytes(p.ID), attempt, seconds_left(task), payload]
            if payload is not None:
                client.say(*record)
            else:
                client.deliver(record)
                self._wanted.append(task.id)
                self._gaps.append((client, record))
                self._behind.add(consumer.queue)
        elif kind == out.OUTCOME:
            _, _, watch, _, ending, payload, detail = effect
            self.claim(client, watch.durable, p.OUTCOME, watch.request, int(ending), payload, detail)
        elif kind == out.RECALL:
            self._recalls.append((client, effect[2], effect[3]))
            if self._recalling < _RECALLS:
                self._recalling += 1
                self.later(self._recall())
        elif kind == out.PROGRESS:
            client.say(p.PROGRESSED, effect[2].request, effect[4])
        elif kind == out.ADMITTED:
            self._admitted(client, *effect[2:])
        elif kind == out.CANCELLED:
            client.say(p.CANCELLED, effect[2].owner, effect[3], effect[4])
        elif kind == out.TOLD:
            client.say(p.TOLD, effect[2].owner, effect[3], effect[4])
        else:
            client.say(p.STOPPED, effect[2].owner, effect[3])

    def _bring(self, client: Client, consumer: int, token: int, tasks: tuple[int, ...]) -> None:
        """Send the outcomes that a task is given, before it; those that only the disk has are read."""
        results, now = self.broker.tasks.results, time.monotonic()
        part: list[tuple[int, out.Ended | out.Brief | None]] = []
        size = 0
        for task in tasks:
            found = results.find(task, now)
            part.append((task, found))
            size += CHARGE + (0 if found is None else found.size)
            if size >= _PART or task == tasks[-1]:
                record = [p.INPUTS, consumer, token, None]
                client.deliver(record)
                self.later(self._fill_inputs(client, record, part))
                part, size = [], 0

    async def _fill_inputs(
        self, client: Client, record: list[Any], part: list[tuple[int, out.Ended | out.Brief | None]]
    ) -> None:
        inputs = []
        for number, found in part:
            ended = found
            if isinstance(found, out.Brief):
                try:
                    stored = await self.store.outcome(number)
                except StoreError:
                    return  # the hub ends: the task, which comes behind, is not given out
                if isinstance(stored, StoreError):
                    inputs.append(_unreadable(p.id_bytes(number), stored))
                    continue
                ended = stored
            # Without an outcome the task was ended meanwhile.
            known = ended if isinstance(ended, out.Ended) else None
            kind = OutcomeKind.LOST if known is None else known.kind
            payload, detail = (None, "") if known is None else (known.payload, known.detail)
            inputs.append([p.id_bytes(number), int(kind), payload, detail])
        record[-1] = inputs
        client.filled()

    async def _recall(self) -> None:
        """Read stored outcomes for their watchers, until none waits."""
        while self._recalls:
            client, watch, number = self._recalls.popleft()
            try:
                found = await self.store.outcome(number) if client.open else None
            except StoreError:
                continue  # the hub ends, and is asked again
            if isinstance(found, StoreError):
                client.fail(watch.request, found)
            elif found is not None:
                client.say(p.OUTCOME, watch.request, int(found.kind), found.payload, found.detail)
        self._recalling -= 1

    def later(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that waits for the store."""
        task = asyncio.ensure_future(answer)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    def _admitted(
        self, client: Client, parked: Parked, number: int | list[int], error: RedpollError | None, known: bool
    ) -> None:
        request, watcher = parked.owner
        client.parked.pop(request, None)
        if error is not None:
            client.fail(request, error)
            return
        if known and watcher:
            self.watch_known(client, watcher, number[0] if isinstance(number, list) else number)
        named: Any = (
            list(map(p.id_bytes, number)) if isinstance(number, list) else p.id_bytes(number) if number else b""
        )
        self.claim(client, True, p.REPLY, request, [named, known])

    # Time

    def _arm(self) -> None:
        self.broker.timers.earlier = False
        deadline = self.broker.deadline
        if self.stopped or deadline is None or deadline >= self._armed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = deadline
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), self._advance)

    def _advance(self) -> None:
        self._timer = None
        self._armed = float("inf")
        try:
            self.broker.advance(time.monotonic())
        finally:
            self.end()
            self._arm()


def seconds_left(task: Task) -> float | None:
    """Return the seconds until the deadline of a task; None if it has none."""
    return None if task.timer is None or not task.flags & DEADLINE else task.timer[0] - time.monotonic()


def _unreadable(task: bytes, error: StoreError) -> list[Any]:
    """Return an outcome for a task to come after that has its client give it up."""
    return [task, int(OutcomeKind.LOST), b"", str(error)]


def _log_defect(what: object, count: int, last: tuple[str, Exception]) -> None:
    client, error = last
    times = "" if count == 1 else f" ({count:,} times since the last report)"
    _log.error("request %r of client %s failed by a defect of the hub%s", what, client, times, exc_info=error)


def _wall(now: float) -> float:
    return now - time.monotonic() + time.time()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make many objects without looking for garbage among them, which would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
