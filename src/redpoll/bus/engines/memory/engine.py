"""The engine ``memory://``.

``memory://`` is private to its bus. ``memory://name`` is shared by all of that name in the process, on any thread and loop;
its tasks are lost when the last of them is closed. A forked child has none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Self

from redpoll.bus.awaitables import Failed, resolve
from redpoll.bus.broker import Limits
from redpoll.bus.broker.outputs import DELIVER
from redpoll.bus.broker.queue import Parked, Task
from redpoll.bus.broker.schedules import Schedule
from redpoll.bus.engine import Clock, DeliverySink, EventSink, Observer, Watcher
from redpoll.bus.engines.handles import call, check_credit, check_subscribing
from redpoll.bus.engines.memory.handles import MemoryConsumer, MemoryDelivery, MemorySubscription
from redpoll.bus.engines.memory.room import Member, enter, leave
from redpoll.bus.envelope import Envelope
from redpoll.bus.records import (
    Capabilities,
    Publication,
    QueueInfo,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    Step,
    TaskInfo,
    Times,
    check_publishing,
    check_steps,
    task_id,
    task_number,
)
from redpoll.bus.state import EngineState, Status
from redpoll.bus.urls import EngineURL
from redpoll.checks import check_function
from redpoll.errors import Closed, ConfigError, PayloadTooLarge, QueueEmpty, RedpollError, UnknownTask, UsageError

__all__ = ["LIMITS", "MAX_BODY", "MemoryEngine", "open_engine"]

_new: Final = tuple.__new__

MAX_BODY: Final = 16 * 2**20
"""The largest body, in bytes, unless told otherwise: the same as a hub's, so that what fits here fits there."""

LIMITS: Final = Limits(results_bytes=16 * 2**20)
"""The limits of a broker in memory, unless told otherwise."""


class MemoryEngine(Member):
    """See `redpoll.bus.engine.Engine`.

    Args:
        name: The name by which engines of this process share it; "" is private.
        clock: Its time, for tests; None is that of the loop.
        limits: Of the broker; all that share it give the same.
        max_body: The largest body, in bytes.

    Raises:
        ConfigError: A value cannot be.
    """

    def __init__(
        self, name: str = "", *, clock: Clock | None = None, limits: Limits = LIMITS, max_body: int = MAX_BODY
    ) -> None:
        super().__init__(max_body)
        if type(max_body) is not int or max_body < 1:
            raise ConfigError("max_body", max_body, "must be an int above 0")
        if not isinstance(limits, Limits):
            raise ConfigError("limits", limits, "must be a Limits record")
        if clock is not None and not all(callable(getattr(clock, name, None)) for name in ("time", "call_at")):
            raise ConfigError("clock", clock, "must have time() and call_at()")
        self.name = name
        self.capabilities = Capabilities(engine="memory", confirm="memory", results="stored", max_body=max_body)
        self.status = Status()
        self._clock = clock
        self._limits = limits
        self._waiting: dict[asyncio.Future[Receipt], Parked] = {}

    def __repr__(self) -> str:
        return f"<MemoryEngine memory://{self.name} {self.status.state.value}>"

    @property
    def clock(self) -> Clock:
        """Its time."""
        clock: Clock = super().clock if self._clock is None else self._clock
        return clock

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        if self.status.state is not EngineState.CONNECTING:
            raise UsageError("this engine was started before", "make another one")
        self.loop = asyncio.get_running_loop()
        self.room = room = enter(self, self.name, self._limits, self._clock)
        with room.guard:
            self.peer = room.broker.peers.join(f"memory-{next(room.numbers)}", room.now(), self)
        self.closed = False
        self.status.change(EngineState.READY)
        return self

    def _stop_all(self) -> None:
        """End all consumers and subscriptions."""
        # Copies: another thread may end a task of a closed consumer, and the consumer with it.
        for subscription in list(self.peer.subscriptions):
            subscription.owner.stop()
        for consumer in list(self.peer.consumers.values()):
            consumer.owner.stop()

    async def _drain(self, seconds: float | None) -> None:
        self._stop_all()
        self.flush_all()
        if not self.peer.held or seconds == 0:
            return
        self.drained = self.loop.create_future()
        timer = None
        if seconds is not None:
            timer = self.clock.call_at(self.clock.time() + seconds, lambda: resolve(self.drained))
        try:
            await self.drained
        finally:
            if timer is not None:
                timer.cancel()

    async def _end(self) -> None:
        """Give all tasks back, settle all futures, leave the room."""
        refusal = self.refusal()
        if refusal is not None:
            return
        # Those that began while it drained.
        self._stop_all()
        room, peer = self.room, self.peer
        held = [each for consumer in tuple(peer.consumers.values()) for each in consumer.owner.deliveries.values()]
        watchers: list[Watcher] = []
        with self.turn() as (broker, now):
            room.observers = [each for each in room.observers if each[0] is not self]
            room.out.observed = bool(room.observers)
            broker.intake.unpark(self._waiting.values(), now)
            # Before it leaves: what ends with it would be told to a peer that is gone.
            watchers = broker.intake.unwatch_all(peer)
            broker.peers.leave(peer, now, goodbye=True)
        self._part()
        self.read_last()
        for delivery in held:
            delivery.lose()
        error = Closed("bus")
        for watcher in watchers:
            call("a watcher", watcher.gone, error)
        futures: list[asyncio.Future[Any]] = [*self._waiting, *self._pressed]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # it may never be awaited
        self.status.change(EngineState.CLOSED)

    def _part(self) -> None:
        """Leave the room, and let somebody else look after its timers."""
        self.closed = True
        self.disarm()
        leave(self)
        for member in tuple(self.room.members):
            try:
                member.loop.call_soon_threadsafe(member.arm)
            except RuntimeError:
                self.report(member)
            else:
                break

    def abort(self) -> None:
        """Leave without goodbye, as a process that is killed: its tasks are lost with it, after the grace.

        For tests.
        """
        if self.refusal() is None:
            with self.turn() as (broker, now):
                broker.peers.leave(self.peer, now, goodbye=False)
            self._part()
            self.status.change(EngineState.CLOSED, "aborted")

    # -- queues

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Make sure that a queue is there."""
        with self.turn() as (broker, now):
            broker.queues.declare(spec, now, update=update)

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue."""
        with self.turn() as (broker, now):
            found = broker.queues.get(queue)
            if not if_unused or not (found.consumers or found.count):
                broker.queues.delete(found, now)

    async def queues(self) -> list[str]:
        """Return the names of all queues."""
        with self.turn() as (broker, _):
            return list(broker.queues.found)

    async def inspect(self, queue: str) -> QueueInfo:
        """Return the contents and counters of a queue."""
        with self.turn() as (broker, _):
            return broker.admin.inspect(broker.queues.get(queue))

    # -- schedules

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Put a task into a queue again and again."""
        envelope, size = publication.envelope, len(publication.envelope.body)
        if size > self.max_body:
            raise PayloadTooLarge(size, self.max_body)
        with self.turn() as (broker, now):
            made = Schedule(name, publication.queue, envelope, size, publication.options, *times)
            broker.schedules.set(made, now)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        with self.turn() as (broker, _):
            return broker.schedules.remove(name)

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules."""
        with self.turn() as (broker, now):
            return broker.schedules.describe(now)

    # -- publishing

    def publish(
        self,
        envelope: Envelope,
        *,
        queue: str | None = None,
        subject: str | None = None,
        watcher: Watcher | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        deadline: float | None = None,
        dedup: str | None = None,
        keep: bool = True,
        mandatory: bool = False,
        last: int = 0,
        confirm: bool = True,  # noqa: ARG002  # everything is confirmed at once
        timeout: float | None = None,
    ) -> Awaitable[Receipt]:
        """Put a task into a queue, or send an event to a subject."""
        size = len(envelope.body)
        if size > self.max_body:
            raise PayloadTooLarge(size, self.max_body)
        if (queue is None) is (subject is None):
            raise UsageError("a message goes to a queue or to a subject", "pass one of queue= and subject=")
        if self.closed:
            return Failed(self.refusal() or Closed("bus"))
        room = self.room
        lock = room.lock
        if lock is not None:
            lock.acquire()
        try:
            if queue is not None:
                options = (priority, delay, ttl, deadline, dedup, keep, mandatory, timeout)
                got: Task | int | Parked | None = room.submit(
                    self.peer, queue, envelope, size, room.now(), watcher, options
                )
            else:
                got = room.publish(self.peer, subject or "", envelope, size, room.now(), mandatory, last, timeout)
        except UsageError:
            raise
        except RedpollError as error:
            return Failed(error)
        finally:
            # Without a function for it: this is on the way of every message, as is `MemoryDelivery.ack`.
            effects = room.out.effects
            if effects:
                room.out.effects = []
                if lock is not None:
                    effects = room.post(self, effects)
            if lock is not None:
                lock.release()
            if len(effects) == 1 and self._flushing and effects[0][0] == DELIVER and not room.timers.earlier:
                # As `route` does.
                self._pending.append(effects[0])
            elif effects or room.timers.earlier:
                self.route(effects, publishing=True)
        if type(got) is Task:
            return _new(Receipt, (room.store, got.id, False))
        if got is None:
            return self.pressure() or Receipt(room.store, 0)
        return self._wait_for_room(got, watcher) if isinstance(got, Parked) else self.join(int(got), watcher)  # type: ignore[arg-type]

    def _wait_for_room(self, parked: Parked, watcher: Watcher | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        parked.owner = (future, watcher)
        self._waiting[future] = parked
        future.add_done_callback(self._waited)
        return future

    def _waited(self, future: asyncio.Future[Any]) -> None:
        parked = self._waiting.pop(future)
        if future.cancelled() and self.refusal() is None:
            with self.turn() as (broker, now):
                broker.intake.unpark((parked,), now)

    async def publish_steps(
        self, steps: Sequence[Step], *, watchers: Sequence[Watcher | None] | None = None, timeout: float | None = None
    ) -> list[Receipt]:
        """Put tasks into their queues, of which some come after others."""
        sizes = [len(each.publication.envelope.body) for each in steps]
        check_steps(steps, sizes, self.max_body)
        watching = [None] * len(steps) if watchers is None else watchers
        with self.turn() as (broker, now):
            planned = list(zip(steps, sizes, watching, strict=True))
            got = broker.intake.submit_steps(self.peer, planned, now, timeout)
        if isinstance(got, Parked):
            found: list[Receipt] = await self._wait_for_room(got, watching[-1])
            return found
        return [self.join(got, watching[-1])] if isinstance(got, int) else self.receipts(got)

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
        prefetch: bool = False,  # noqa: ARG002  # there is no round trip
    ) -> MemoryConsumer:
        """Take tasks from a queue as they come."""
        check_credit(credit)
        consumer = MemoryConsumer(self, queue, credit, sink)
        with self.turn() as (broker, now):
            consumer.held = broker.work.consume(
                self.peer, queue, now, credit, consumer, exclusive=exclusive, accepts=accept
            )
        return consumer

    async def take(self, queue: str, timeout: float | None = 0.0) -> MemoryDelivery:
        """Take one task, in turn with the consumers."""
        check_publishing(0, 0.0, timeout=timeout)
        consumer = MemoryConsumer(self, queue, 1, None)
        with self.turn() as (broker, now):
            consumer.held = broker.work.consume(self.peer, queue, now, 1, consumer, auto=False)
        timer = None
        # One that is handed out comes in a turn of the loop, whatever the timeout.
        if timeout is not None and not consumer.held.held:
            empty = QueueEmpty(queue, timeout)
            if timeout == 0:
                consumer.stop()
                raise empty
            timer = self.clock.call_at(self.clock.time() + timeout, lambda: self._give_up(consumer, empty))
        try:
            return await anext(consumer)
        except StopAsyncIteration:
            raise Closed("bus") from None
        finally:
            if timer is not None:
                timer.cancel()
            if not self.closed:
                consumer.stop()

    def _give_up(self, consumer: MemoryConsumer, error: QueueEmpty) -> None:
        if not self.closed:
            consumer.stop(error)

    async def subscribe(
        self,
        patterns: Iterable[str],
        *,
        sink: EventSink | None = None,
        last: bool = False,
        buffer: int = 1_000,
    ) -> MemorySubscription:
        """Take the events of the subjects that match."""
        wanted = check_subscribing(patterns, buffer)
        subscription = MemorySubscription(self, wanted, sink, buffer)
        with self.turn() as (broker, _):
            subscription.wanted = broker.intake.subscribe(self.peer, wanted, subscription, last=last)
        return subscription

    # -- tasks that are somewhere

    def _number(self, task: str) -> int:
        return task_number(task, self.room.store)

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Cancel a task, or a call."""
        number = self._number(task)
        with self.turn() as (broker, now):
            answer = broker.work.cancel(number, now)
        if answer is None:
            raise UnknownTask(task)
        return answer

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Send a message to the worker of a task."""
        number = self._number(task)
        if len(envelope.body) > self.max_body:
            raise PayloadTooLarge(len(envelope.body), self.max_body)
        with self.turn() as (broker, _):
            return broker.work.tell(number, envelope)

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task."""
        number = self._number(task)
        with self.turn() as (broker, now):
            found: Any = broker.admin.find(number, now)
            info = broker.admin.describe(found)
        # The stored outcome has the `Outcome` as its envelope.
        kept: Any = None if info.outcome is None else info.outcome.envelope
        return info if kept is None else replace(info, outcome=kept)

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Watch a task that was submitted before."""
        number = self._number(task)
        with self.turn() as (broker, now):
            broker.intake.watch(self.peer, number, watcher, now)

    # -- administration

    async def browse(
        self, queue: str, state: Literal["ready", "delayed", "taken", "dead"] = "ready", limit: int = 100
    ) -> list[TaskInfo]:
        """Look at tasks."""
        with self.turn() as (broker, _):
            return [broker.admin.describe(each) for each in broker.admin.browse(broker.queues.get(queue), state, limit)]

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait, or the dead letters."""
        with self.turn() as (broker, now):
            return broker.admin.purge(broker.queues.get(queue), state, now)

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Move ready tasks to another queue."""
        with self.turn() as (broker, now):
            return broker.admin.move(broker.queues.get(source), broker.queues.get(target), limit, now)

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Hand nothing out, or do so again."""
        with self.turn() as (broker, _):
            broker.queues.pause(broker.queues.get(queue), paused)

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Put dead letters back into their queue."""
        numbers = None if tasks is None else [self._number(each) for each in tasks]
        with self.turn() as (broker, now):
            made = broker.admin.redrive(self.peer, broker.queues.get(queue), numbers, now)
        return [task_id(self.room.store, each.id) for each in made]

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a function with each event of this engine's queues."""
        check_function("observer", observer, "an observer is a plain function of four arguments")
        mine = (self, observer)
        self._observe(lambda others: [*others, mine])
        return lambda: self._observe(lambda others: [each for each in others if each is not mine])

    def _observe(self, change: Callable[[list[Any]], list[Any]]) -> None:
        if self.refusal() is None:
            with self.turn() as (broker, _):
                self.room.observers = change(self.room.observers)
                broker.out.observed = bool(self.room.observers)


def open_engine(url: EngineURL, options: Mapping[str, Any]) -> MemoryEngine:
    """Make the engine of a URL: ``memory://name``, with the options clock, limits and max_body.

    It is always there: `wait` and `connect_timeout` mean nothing.

    Raises:
        ConfigError: The URL has what a memory engine does not: a port, a user, a path; or there is no such option.
    """
    given: dict[str, Any] = {**dict(url.options), **options}
    given.pop("wait", None)
    given.pop("connect_timeout", None)
    if len(url.hosts) > 1 or url.path or url.user or any(port is not None for _, port in url.hosts):
        raise ConfigError("url", str(url), "must have nothing but a name", "memory:// or memory://name")
    for name, value in given.items():
        if name not in {"clock", "limits", "max_body"}:
            raise ConfigError(name, value, "is no option of memory://")
    if isinstance(given.get("max_body"), str):
        try:
            given["max_body"] = int(given["max_body"])
        except ValueError:
            raise ConfigError("max_body", given["max_body"], "must be an int above 0") from None
    return MemoryEngine(url.hosts[0][0] if url.hosts else "", **given)
