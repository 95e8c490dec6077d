"""A bridge between two engines: callers and workers on either side serve each other.

Each queue is looked at on both sides, once in a period. While the far side has workers for it, and the near side has none, or
has more tasks than they begin, the bridge is a worker of the near queue: it submits each task to the far queue and holds it
until its far outcome is there, which it records. What a publisher and a worker say to each other meanwhile passes. Events
pass by a live subscription on each side.

A task that the bridge holds is never lost with it: it goes back as that of any worker. The next bridge submits it with the
same key, and joins it at the far side. Calls are accepted, and end as lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Self

from redpoll.bus.awaitables import OutcomeFuture, close_all, sleep
from redpoll.bus.bus import Bus, connect
from redpoll.bus.engine import Consumer, Delivery, Engine, Subscription
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import pack_failure
from redpoll.bus.records import Event, QueueInfo, QueueSpec, Receipt, check_subject, words_match
from redpoll.bus.rpc.server import WINDOW
from redpoll.bus.state import EngineState
from redpoll.checks import integer, require, seconds
from redpoll.errors import (
    Closed,
    ConfigError,
    Expired,
    NoRoute,
    NotAuthorized,
    NotSent,
    PayloadTooLarge,
    RedpollError,
    ResultTooLarge,
    SpecConflict,
    TaskError,
    Unsupported,
    UsageError,
)

__all__ = ["Bridge"]

_log = logging.getLogger("redpoll.bus.bridge")

#: The key of `Envelope.meta` for the names of the bridges that a message has passed.
_PASSED: Final = "bridges"
#: Maximum bridges that a task passes: one that goes in a circle, or follows workers that move, stays then.
_HOPS: Final = 16
#: Prefix of the queues that keep a second bridge of the same name waiting, and of dedup keys.
_OWN: Final = "bridge:"
#: Open deliveries for each far worker at first, where the near side has none.
_AHEAD: Final = 16
#: Queues that are looked at at the same time.
_LOOKS: Final = 64
#: Minimum time between two looks, as a multiple of the time that one takes.
_SHARE: Final = 10
#: Seconds for which a bridge keeps its place while it is cut off from a side.
_AWAY: Final = 5.0
#: Seconds before a task is submitted again where it is not known whether the far side has it.
_PAUSE: Final = 0.25


class Bridge:
    """Joins two engines while its block runs: ``async with redpoll.Bridge("redpoll://hub", "amqp://rabbit") as bridge``.

    A task passes while the far side has workers for its queue, and the near side has none, or more tasks than they begin. The
    bridge holds it at its origin until its far outcome is recorded there. Of several bridges of one name between two engines
    one is active; another takes over when that is gone. Bridges of different names may make chains and stars of engines, but
    no circles.

    Args:
        first: One side: a URL, or a `Bus` that was not entered, for options that a URL does not have.
        second: The other side.
        queues: Patterns of the names of queues, as those of files: ``images.*``, ``rpc:*``. A name without wildcards is also
            looked up where an engine cannot list its queues.
        subjects: Patterns of the subjects of events that pass. By default broadcasts, and messages to all servers.
        name: Name of the bridge.
        limit: Maximum number of held tasks, per queue and direction.
        period: Seconds between two looks at the queues; more where a look takes longer than a tenth of that.

    Attributes:
        forwarded: Number of tasks and calls that ended at the far side.
        events: Number of events that were passed on.
        errands: Requests to far engines that are under way.

    Raises:
        ConfigError: A value cannot be.
    """

    def __init__(
        self,
        first: str | Bus,
        second: str | Bus,
        *,
        queues: Iterable[str] = ("*",),
        subjects: Iterable[str] = ("broadcast.#", "rpc.#"),
        name: str = "main",
        limit: int = 1_000,
        period: float = 1.0,
    ) -> None:
        for field, patterns in (("queues", queues), ("subjects", subjects)):
            if isinstance(patterns, str):
                raise ConfigError(field, patterns, "must be a list of patterns")
        self.forwarded = self.events = 0
        self.name, self.limit, self._period = name, limit, period
        self._queues, self._subjects = tuple(queues), tuple(subjects)
        check_subject("name", name)
        for each in self._subjects:
            check_subject("subjects", each, pattern=True)
        require("limit", limit, integer(1, 1_000_000))
        require("period", period, seconds)
        self._matches = [words_match(each) for each in self._subjects]
        self._buses = [each if isinstance(each, Bus) else connect(each) for each in (first, second)]
        engines = [each.engine for each in self._buses]
        # Both directions: the engine of the origins, and that of the workers.
        self._ways = (engines, engines[::-1])
        self._spec = QueueSpec(f"{_OWN}{name}", durable=False, expires=60.0)
        self._locks: list[Consumer] = []
        self._subscriptions: list[Subscription] = []
        self._flows: dict[str, list[_Flow]] = {}
        self.errands: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None
        # Of the look that is under way.
        self._limit: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        return f"<Bridge {self.name!r} {'active' if self.active else 'waiting'}>"

    @property
    def active(self) -> bool:
        """True if it is the bridge of its name that passes messages, and both sides are connected."""
        return bool(self._locks) and all(each.active for each in self._locks)

    @property
    def held(self) -> int:
        """The number of tasks and calls that it holds."""
        return len(self._jobs())

    async def __aenter__(self) -> Self:
        """Connect both sides and begin, or wait while another bridge of this name is active.

        Raises:
            DialFailed: A side was not reached in time.
            ConfigError: Both sides are the same engine.
            NotAuthorized: A side does not allow it.
            UsageError: It was entered before.
        """
        if self._runner is not None:
            raise UsageError("this bridge was entered before", "make another one")
        try:
            for bus in self._buses:
                await bus.__aenter__()
                bus.status.watch(self._pause)
            await self._check()
            await self._is_first()
        except BaseException:
            await close_all(each.close() for each in self._buses)
            raise
        self._runner = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close, without waiting for what is at the far side."""
        await self.close()

    async def wait(self) -> None:
        """Wait until it is closed.

        Raises:
            RedpollError: It failed: a side does not allow it any more, or was closed.
        """
        if self._runner is not None:
            await asyncio.wait([self._runner])
            if not self._runner.cancelled():
                self._runner.result()

    async def close(self, drain: float | None = 0.0) -> None:
        """Take nothing more, wait for the outcomes of what is held, and give the rest back.

        Args:
            drain: Seconds to wait; None is no limit.

        A task that is given back continues at the far side, and the next bridge joins it there; until then a worker of its
        origin may begin it too. A call is cancelled. Cancelled, this gives everything back at once.
        """
        try:
            if self._runner is not None:
                self._runner.cancel()
                await asyncio.gather(self._runner, return_exceptions=True)
                await self._rest()
            if self.held and drain != 0:
                await asyncio.wait(self._jobs(), timeout=drain)
        finally:
            jobs = self._jobs()
            for job in jobs:
                job.cancel()
            try:
                await asyncio.gather(*jobs, return_exceptions=True)
                if self.errands:
                    await asyncio.wait(self.errands, timeout=1.0)
            finally:
                # Also where it is cancelled again.
                await close_all(each.close() for each in self._buses)

    def _jobs(self) -> list[asyncio.Task[None]]:
        return [job.task for flows in self._flows.values() for flow in flows for job in flow.jobs]

    # -- one of a name

    async def _check(self) -> None:
        """Check both sides, and warn of a promise that one does not keep.

        Raises:
            ConfigError: They are the same engine.
        """
        one, other = self._ways[0]
        probe = f"{self._spec.name}.{uuid.uuid4().hex}"
        await one.declare(replace(self._spec, name=probe))
        try:
            with suppress(NoRoute):
                await other.inspect(probe)
                raise ConfigError("second", other, "is the same engine as the first", "give the URLs of two")
        finally:
            await one.delete(probe)
        for each in (one, other):
            if not each.capabilities.dedup:
                _log.warning("%r has no dedup keys: a task may run twice there if a bridge is killed", each)

    async def _run(self) -> None:
        clock = self._buses[0].engine.clock
        ready = clock.time()
        while True:
            began = clock.time()
            states = {each.state for each in self._buses}
            if EngineState.CLOSED in states:
                raise Closed("bus")
            try:
                if states == {EngineState.READY}:
                    async with asyncio.timeout(None) as self._limit:
                        if await self._is_first():
                            await self._look()
                    ready = clock.time()
                elif self._locks and began - ready > _AWAY:
                    # Another one may be connected to both sides.
                    _log.warning("%r gives its place away: a side is not there for it", self)
                    await self._rest()
            except (Closed, NotAuthorized):
                raise
            except RedpollError as error:
                _log.warning("bridge %r could not look at the queues: %s", self.name, error)
            except TimeoutError:
                _log.debug("bridge %r ended a look: a side is not there for it", self.name)
                began = clock.time()
            finally:
                self._limit = None
            pause = max(self._period, _SHARE * (clock.time() - began))
            # Two that begin at the same moment must not stay in step.
            await sleep(clock, pause * random.uniform(0.75, 1.0))  # noqa: S311  # no secret

    async def _is_first(self) -> bool:
        """Return True if this is the active bridge of its name: it has a queue on both sides to itself."""
        if self.active:
            return True
        await self._rest()
        try:
            for each in self._ways[0]:
                await each.declare(self._spec)
                self._locks.append(await each.consume(self._spec.name, exclusive=True))
            for near, far in self._ways if self._subjects else ():
                self._subscriptions.append(await near.subscribe(self._subjects, sink=partial(self._pass, far)))
        except BaseException as error:
            await self._rest()
            if not isinstance(error, SpecConflict):
                raise
        _log.info("%r", self)
        return self.active

    async def _rest(self) -> None:
        """Take nothing more, so that another bridge of this name does; what is held is held until its outcome is there."""
        sources: list[_Flow | Subscription | Consumer] = [flow for each in self._flows.values() for flow in each]
        sources += [*self._subscriptions, *self._locks]
        self._subscriptions, self._locks = [], []
        await close_all(each.close() for each in sources)

    def _pause(self, state: EngineState, _: str) -> None:
        """Take nothing before the next look, which is when both sides are connected: what waits is held at its origin.

        A look that is under way ends: it might wait for that as long, while another bridge waits for the place.
        """
        if self._limit is not None and state is not EngineState.READY:
            self._limit.reschedule(0.0)
            self._limit = None
        for flows in self._flows.values():
            for flow in flows:
                flow.pause()

    # -- events

    def _passes(self, subject: str) -> bool:
        return any(match(subject) for match in self._matches)

    def _pass(self, far: Engine, event: Event) -> None:
        meta = event.envelope.meta or {}
        passed = meta.get(_PASSED, ())
        if event.kept or self.name in passed:
            return
        with suppress(PayloadTooLarge):
            # Best effort, as events are: nobody waits for it.
            far.publish(event.envelope._replace(meta={**meta, _PASSED: [*passed, self.name]}), subject=event.subject)
            self.events += 1

    # -- queues

    async def _look(self) -> None:
        """Look at all queues on both sides, and serve those that need it."""
        listed = {name for each in self._ways[0] for name in await each.queues()}
        names = {each for each in self._queues if not {"*", "?", "["} & set(each)}
        names |= {name for name in listed if any(fnmatchcase(name, each) for each in self._queues)}
        wanted = [name for name in names if not name.startswith(_OWN)]
        for start in range(0, len(wanted), _LOOKS):
            await asyncio.gather(*map(self._look_at, wanted[start : start + _LOOKS]))
        for name in self._flows.keys() - names:
            if not any(flow.active or flow.jobs for flow in self._flows[name]):
                del self._flows[name]

    async def _look_at(self, name: str) -> None:
        infos: list[QueueInfo | None] = []
        try:
            for engine in self._ways[0]:
                infos.append(None)
                with suppress(NoRoute):
                    infos[-1] = await engine.inspect(name)
            specs = [each.spec for each in infos if each is not None]
            if not specs or (specs[0].kind == "events" and all(map(self._passes, specs[0].topics))):
                # It is filled on both sides, since its events pass.
                return
            if name not in self._flows:
                self._flows[name] = [_Flow(self, near, far, specs[0]) for near, far in self._ways]
            there, back = self._flows[name]
            # Without its own consumers, as they are now.
            one, other = (
                each and replace(each, consumers=each.consumers - flow.active)
                for each, flow in zip(infos, (there, back), strict=True)
            )
            await there.adjust(back, one, other)
            await back.adjust(there, other, one)
        except RedpollError as error:
            _log.debug("queue %r is left as it is: %s", name, error)


class _Flow:
    """A queue in one direction.

    Args:
        bridge: The bridge.
        near: The engine of the origins.
        far: The engine of the workers.
        spec: The queue.

    Attributes:
        jobs: The held tasks.
        active: True if it is a consumer of the near queue.
        is_rpc: True if these are calls, which are made at most once.
        done: Number of tasks that ended since the last look.
    """

    def __init__(self, bridge: Bridge, near: Engine, far: Engine, spec: QueueSpec) -> None:
        self.bridge, self.near, self.far = bridge, near, far
        self.name = spec.name
        self.is_rpc = spec.kind == "rpc"
        self.jobs: set[_Job] = set()
        self.done = 0
        self._consumer: Consumer | None = None
        self._problem = ""

    @property
    def active(self) -> bool:
        """See above."""
        return self._consumer is not None and self._consumer.active

    async def adjust(self, back: _Flow, near: QueueInfo | None, far: QueueInfo | None) -> None:
        """Serve the queue as it should be served now, or not at all.

        Args:
            back: The other direction.
            near: The near queue, with the consumers that are not this bridge's; None if it does not exist.
            far: The far queue, likewise.
        """
        for job in [each for each in self.jobs if WINDOW in (each.delivery.envelope.meta or {})]:
            # A stream whose caller is gone is left, as its server would do.
            with suppress(TaskError, Unsupported):
                if not (await self.near.lookup(job.delivery.id)).watched:
                    job.cancelled("its caller is gone")
        rivals = 0 if near is None else near.consumers
        workers = 0 if far is None else far.consumers
        # With workers on both sides, no task is to wait far that could be begun near, and none goes back.
        shares = near is not None and far is not None and near.ready > 0 and not far.ready and not back.jobs
        if far is None or workers <= 0 or (rivals > 0 and not shares):
            await self.close()
            return
        if near is None:
            await self.near.declare(far.spec)
        # As many as the far side has begun, and some more, by which it is found out how many it takes.
        held, done, self.done = len(self.jobs), self.done, 0
        begun = held - far.ready if far.ready else 2 * held
        credit = min(self.bridge.limit, max(workers if rivals > 0 else _AHEAD * workers, done, begun))
        if self._consumer is not None and self.active:
            self._consumer.set_credit(credit)
            return
        await self.close()
        self._consumer = await self.near.consume(self.name, credit=credit, sink=self._take, accept=self.is_rpc)
        _log.info("queue %r of %r is served by %r", self.name, self.near, self.far)

    def pause(self) -> None:
        """Take nothing before the next look."""
        if self._consumer is not None:
            self._consumer.set_credit(0)

    async def close(self) -> None:
        """Take nothing more."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            _log.info("queue %r of %r is no longer served by %r", self.name, self.near, self.far)
            await consumer.close()

    def block(self, error: RedpollError) -> None:
        """Take nothing before the next look, since the far side takes nothing."""
        self.pause()
        if str(error) != self._problem:
            self._problem = str(error)
            _log.warning("queue %r of %r cannot pass to %r: %s", self.name, self.near, self.far, error)

    def _take(self, delivery: Delivery) -> None:
        if len((delivery.envelope.meta or {}).get(_PASSED, ())) >= _HOPS:
            delivery.reject(delay=_HOPS, exclude=True, reason=f"it has passed {_HOPS} bridges")
            return
        if delivery.inputs:
            delivery.reject(delay=_HOPS, exclude=True, reason="the results that it is given do not pass a bridge")
            return
        try:
            job = _Job(self, delivery)
        except PayloadTooLarge as error:
            delivery.reject(requeue=False, reason=str(error))
            return
        self.jobs.add(job)
        job.task.add_done_callback(lambda _: self._end(job))
        delivery.listen(job)

    def _end(self, job: _Job) -> None:
        self.jobs.discard(job)
        # The calls below do nothing if it has ended. A call may have begun.
        if self.is_rpc:
            if job.task.cancelled():
                job.cancelled("")
            job.delivery.ack(Outcome(OutcomeKind.CANCELLED, None, "its bridge was closed"))
        else:
            job.delivery.reject(delay=0.0 if job.task.cancelled() else 1.0, reason="its bridge was closed")


class _Watch(OutcomeFuture):
    """The outcome of a task at the far side; its progress is told near."""

    delivery: Delivery

    def progress(self, envelope: Envelope) -> None:
        """Take progress, or a part of a streamed answer."""
        with suppress(PayloadTooLarge):
            self.delivery.progress(envelope)


class _Job:
    """A held task, and its copy at the far side; the listener of its delivery.

    Args:
        flow: Its queue.
        delivery: The task.

    Attributes:
        task: The asyncio task that holds it.

    Raises:
        PayloadTooLarge: The far engine takes no such body.
    """

    def __init__(self, flow: _Flow, delivery: Delivery) -> None:
        self.delivery = delivery
        self._flow = flow
        self._copy = ""
        # Messages of its publisher wait until the copy is known.
        self._order = asyncio.Lock()
        # Submitted here, in the order of the deliveries.
        self.task = asyncio.get_running_loop().create_task(self._hold(self._submit()))

    def _submit(self) -> Awaitable[Receipt]:
        flow, delivery = self._flow, self.delivery
        meta = delivery.envelope.meta or {}
        passed = [*meta.get(_PASSED, ()), flow.bridge.name]
        self._watch = _Watch(loop=asyncio.get_running_loop())
        self._watch.delivery = delivery
        return flow.far.publish(
            delivery.envelope._replace(meta={**meta, _PASSED: passed}),
            queue=flow.name,
            watcher=self._watch,
            deadline=None if delivery.left is None else max(0.0, delivery.left),
            dedup=f"{_OWN}{delivery.id}" if flow.far.capabilities.dedup and not flow.is_rpc else None,
            keep=not flow.is_rpc,
            mandatory=flow.is_rpc,
        )

    async def _hold(self, sent: Awaitable[Receipt]) -> None:
        """Wait for the far outcome, and record it."""
        flow, delivery = self._flow, self.delivery
        await self._order.acquire()
        try:
            outcome = await self._outcome(sent)
        finally:
            if not self._copy:
                self._order.release()
        if outcome is None:
            return
        flow.done += 1
        flow.bridge.forwarded += 1
        try:
            if outcome.kind is OutcomeKind.DEAD:
                delivery.reject(requeue=False, reason=outcome.detail)
            else:
                delivery.ack(outcome)
        except ResultTooLarge as error:
            delivery.ack(Outcome(OutcomeKind.ERROR, pack_failure(error, traceback=False)))

    async def _outcome(self, sent: Awaitable[Receipt]) -> Outcome | None:
        """Return the far outcome; None where the far side never had the task, which is given back."""
        flow, delivery = self._flow, self.delivery
        while True:
            try:
                receipt = await sent
                if not self._copy:
                    self._order.release()
                self._copy = receipt.id
                return await self._watch
            except (NoRoute, NotSent, NotAuthorized, Closed) as error:
                if isinstance(error, Expired) and delivery.left is not None and delivery.left <= 0:
                    return Outcome(OutcomeKind.EXPIRED, None, str(error))
                flow.block(error)
                delivery.reject(reason=f"it did not pass the bridge: {error}")
                return None
            except TaskError as error:
                # It ended there, and its outcome is not kept.
                return Outcome(OutcomeKind.ERROR, pack_failure(error, traceback=False))
            except RedpollError as error:
                # The far side may have it.
                if flow.is_rpc:
                    return Outcome(OutcomeKind.LOST, None, str(error))
                await sleep(flow.far.clock, _PAUSE)
                sent = self._submit()

    # -- the listener

    def lost(self) -> None:
        """Let it go: another bridge has it."""
        self.task.cancel()

    def cancelled(self, _: str) -> None:
        """Cancel the copy, whose outcome counts."""
        self._say(self._flow.far.cancel)

    def told(self, envelope: Envelope) -> None:
        """Pass a message on to the worker."""
        self._say(self._flow.far.tell, envelope)

    def _say(self, ask: Callable[..., Coroutine[Any, Any, object]], *arguments: Envelope) -> None:
        async def say() -> None:
            async with self._order:
                if self._copy:
                    # Nothing changes if it has ended, or cannot be asked.
                    with suppress(RedpollError):
                        await ask(self._copy, *arguments)

        errands = self._flow.bridge.errands
        errands.add(errand := asyncio.get_running_loop().create_task(say()))
        errand.add_done_callback(errands.discard)
