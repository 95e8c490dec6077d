"""The engine ``redpoll://host:port``: queues and subjects at a hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, cast

from redpoll.address import Address
from redpoll.bus.awaitables import Failed
from redpoll.bus.engine import DeliverySink, EventSink, Observer, Watcher
from redpoll.bus.engines.handles import check_credit, check_subscribing
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.handles import HubConsumer, HubDelivery, HubSubscription, pack_publication, packed
from redpoll.bus.engines.hub.member import HubMember
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, decode
from redpoll.bus.records import (
    Publication,
    QueueInfo,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    Step,
    TaskInfo,
    Times,
    check_flags,
    check_last,
    check_publishing,
    check_steps,
    check_subject,
    task_id,
    task_number,
)
from redpoll.bus.urls import EngineURL
from redpoll.checks import check_function, require, seconds
from redpoll.config import Config
from redpoll.errors import (
    Closed,
    ConfigError,
    DecodeError,
    PayloadTooLarge,
    QueueEmpty,
    QueueFull,
    UnknownTask,
    UsageError,
)
from redpoll.tls import TLS

__all__ = ["HubEngine", "HubReceipts", "open_engine"]

_new: Final = tuple.__new__
_FLAGS: Final = (bool, bool)

#: Port of a hub.
PORT: Final = 5683
#: Bytes of publishes that wait to be sent.
_WAITING_BYTES: Final = 64 * 2**20


class HubEngine(HubMember):
    """See `redpoll.bus.engine.Engine`. The arguments are those of `HubMember`."""

    window = 1_024

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._check()
        p.check(arguments)
        problem = p.call_problem(name, arguments)
        if problem is not None:
            raise UsageError(problem)
        again = name not in {"redrive", "move", "backup"}
        return self._ask(p.CALL, name, list(arguments), again=again)

    def _call_of(self, name: str, queue: str, *arguments: Any) -> asyncio.Future[Any]:
        check_subject("queue", queue)
        return self._call(name, queue, *arguments)

    # -- queues

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Make sure that a queue is there."""
        values = {name: getattr(spec, name) for name in QueueSpec.__dataclass_fields__}
        await self._call("declare", {**values, "topics": list(spec.topics)}, update)

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue."""
        await self._call_of("delete", queue, if_unused)

    async def queues(self) -> list[str]:
        """Return the names of all queues."""
        return cast("list[str]", await self._call("queues"))

    async def inspect(self, queue: str) -> QueueInfo:
        """Return the contents and counters of a queue."""
        values = await self._call_of("inspect", queue)
        return QueueInfo(spec=p.rebuild_spec(values.pop("spec")), **values)

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
        confirm: bool = True,
        timeout: float | None = None,
    ) -> Awaitable[Receipt]:
        """Put a task into a queue, or send an event to a subject."""
        size = len(envelope.body)
        if size > self.max_body:
            raise PayloadTooLarge(size, self.max_body)
        if (queue is None) is (subject is None):
            raise UsageError("a message goes to a queue or to a subject", "pass one of queue= and subject=")
        check_publishing(priority, delay, ttl, deadline, timeout, dedup)
        if (type(keep), type(mandatory)) != _FLAGS:
            check_flags(keep=keep, mandatory=mandatory)
        if subject is not None:
            check_subject("subject", subject)
            if type(last) is not int or last:
                check_last(last)
        else:
            check_subject("queue", queue)
        if self.closed or self._last_error is not None:
            refusal = self.rejection
            if refusal is not None:
                return Failed(refusal)
        if self._waiting_bytes + size > _WAITING_BYTES and self._waiting_bytes:
            return Failed(QueueFull(None, _WAITING_BYTES, "bytes", queue=queue or subject))
        if not self.linked and timeout is not None and timeout <= 0:
            return Failed(self.expired(timeout))
        payload = packed(envelope)
        limit = ttl if deadline is None else deadline
        if limit is None or (timeout is not None and timeout < limit):
            limit = timeout
        if queue is not None:
            record = (
                p.PUBLISH,
                queue,
                payload,
                watcher is not None,
                priority,
                delay,
                ttl,
                deadline,
                dedup,
                keep,
                mandatory,
            )
            # Nobody can ask for the outcome of one that is not kept later.
            dies = not keep and deadline is not None and deadline == limit
            again, size = dedup is not None, len(payload)
            future = self._ask(*record, timeout, again=again, size=size, watcher=watcher, timeout=limit, dies=dies)
        else:
            how = (mandatory, last, timeout)
            future = self._ask(p.EVENT, subject, payload, *how, again=False, size=len(payload), timeout=limit)
        number = next(reversed(self._requests))
        receipt = HubReceipts(self, number, future, watcher is not None and not keep)
        return receipt if confirm else _sent(self.loop, receipt)

    async def publish_steps(
        self, steps: Sequence[Step], *, watchers: Sequence[Watcher | None] | None = None, timeout: float | None = None
    ) -> list[Receipt]:
        """Put tasks into their queues, of which some come after others."""
        sizes = [len(each.publication.envelope.body) for each in steps]
        check_steps(steps, sizes, self.max_body)
        check_publishing(0, 0.0, timeout=timeout)
        self._check()
        for each in steps:
            check_subject("queue", each.publication.queue)
        if not self.linked and timeout is not None and timeout <= 0:
            raise self.expired(timeout)
        if self._waiting_bytes + sum(sizes) > _WAITING_BYTES and self._waiting_bytes:
            raise QueueFull(None, _WAITING_BYTES, "bytes", queue=steps[-1].publication.queue)
        watching = [None] * len(steps) if watchers is None else watchers
        watched = [(0 if each is None else next(self._numbers), each) for each in watching]
        tasks = [
            [pack_publication(each, self.max_body), list(after), collect, place]
            for (each, after, collect), (place, _) in zip(steps, watched, strict=True)
        ]
        # With a key it can be asked for again.
        again = steps[-1].publication.dedup is not None
        future = self._ask(p.STEPS, tasks, timeout, again=again, size=sum(sizes), timeout=timeout)
        number = next(reversed(self._requests))
        self._requests[number].watchers = watched
        try:
            found, known = await future
        except asyncio.CancelledError:
            self.withdraw(number)
            raise
        return [Receipt(self.store, p.id_number(each), known) for each in found]

    def withdraw(self, number: int) -> None:
        """Forget a request that nobody waits for any more; a publish that waits for room waits no more."""
        request = self._requests.get(number)
        if request is None or self.refusal() is not None:
            return
        if request.sent:
            self.say_if_linked(p.WITHDRAW, number)
            request.again = False
        else:
            del self._requests[number]
            self._unsay(request)

    def cancel_unread(self, number: int, receipt: asyncio.Future[Any]) -> None:
        """Cancel a task whose outcome has no reader any more, if the hub took it, or once it says so."""
        request = self._requests.get(number)
        if request is not None:
            request.watcher = None
            request.future = receipt = self.loop.create_future()
        elif receipt.cancelled() and number in self._watchers:
            # The answer came in the turn in which its reader was cancelled.
            _, task, _ = self._watchers.pop(number)
            self.say_if_linked(p.CALL, 0, "cancel", [p.id_bytes(task)])
        receipt.add_done_callback(self._cancel_taken)

    def _cancel_taken(self, receipt: asyncio.Future[Any]) -> None:
        if receipt.cancelled() or receipt.exception() is not None:
            return
        task, known = receipt.result()
        if not known:
            self.say_if_linked(p.CALL, 0, "cancel", [task])

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
        prefetch: bool = False,
    ) -> HubConsumer:
        """Take tasks from a queue as they come."""
        check_credit(credit)
        check_flags(accept=accept, exclusive=exclusive)
        check_subject("queue", queue)
        self._check()
        number = next(self._numbers)
        consumer = self._consumers[number] = HubConsumer(
            self, number, queue, credit, sink, accept, exclusive, prefetch and not accept and sink is not None
        )
        self._show_life()
        try:
            await self._ask(p.CONSUME, number, queue, credit, accept, exclusive, True, again=True)
        except BaseException:
            consumer.stop()
            raise
        return consumer

    async def take(self, queue: str, timeout: float | None = 0.0) -> HubDelivery:
        """Take one task, in turn with the consumers."""
        check_publishing(0, 0.0, timeout=timeout)
        check_subject("queue", queue)
        self._check()
        if timeout == 0 and not self.linked and not self._patient:
            raise self.expired(timeout)
        number = next(self._numbers)
        consumer = self._consumers[number] = HubConsumer(self, number, queue, 1, None, False, False)
        self._takes.add(consumer)
        self._show_life()
        timer = None
        try:
            if timeout == 0:
                # It gets no second one: what comes counts as begun also where the loop is blocked meanwhile.
                consumer.begun = sys.maxsize
                steady = not self.suspended
                while not await self._ask(p.TAKE, number, queue, again=False):
                    if steady and not self.suspended:
                        raise QueueEmpty(queue, timeout)
                    # The hub hands out nothing until it knows that the loop runs again, which it is told now.
                    steady = not self.suspended
            else:
                if timeout is not None:
                    timer = self.loop.call_later(timeout, consumer.stop, QueueEmpty(queue, timeout))
                await self._ask(p.CONSUME, number, queue, 1, False, False, False, again=True, timeout=timeout)
            return await anext(consumer)
        except StopAsyncIteration:
            raise Closed("bus") from None
        finally:
            self._takes.discard(consumer)
            if timer is not None:
                timer.cancel()
            if not self.closed:
                consumer.stop()

    async def claim(self, consumer: HubConsumer, task: str) -> HubDelivery | Literal["busy", "ended", "unknown"]:
        """Take a task by its id for a consumer of its queue, beside the credit, and without its envelope.

        Once this returns the hand-out is recorded as surely as `Capabilities.confirm` says.

        Returns:
            The delivery; "busy" where another worker has the task, or it is not due yet; "ended" where it has ended; or
            "unknown" where the hub never had it.
        """
        try:
            number = self._number(task)
        except UnknownTask:
            return "unknown"
        asked = self._call("claim", consumer.number, p.id_bytes(number))
        try:
            got = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda answer: self._unclaim(consumer, answer))
            raise
        if isinstance(got, str):
            return cast('Literal["busy", "ended", "unknown"]', got)
        token, attempt, left = got
        ends = None if left is None else self.loop.time() + left
        delivery = HubDelivery(consumer, token, number, attempt, ends, Envelope("raw", b""))
        consumer.deliveries[token] = delivery
        if consumer.closed or not delivery.begin():
            consumer.deliveries.pop(token, None)
            self._unclaim(consumer, asked)
            return "busy"
        return delivery

    def _unclaim(self, consumer: HubConsumer, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None and isinstance(answer.result(), list):
            self.say_if_linked(p.BACK, 0, consumer.number, [answer.result()[0]])

    async def subscribe(
        self,
        patterns: Iterable[str],
        *,
        sink: EventSink | None = None,
        last: bool = False,
        buffer: int = 1_000,
    ) -> HubSubscription:
        """Take the events of the subjects that match."""
        check_flags(last=last)
        wanted = check_subscribing(patterns, buffer)
        for each in wanted:
            check_subject("patterns", each, pattern=True)
        self._check()
        number = next(self._numbers)
        subscription = self._subscriptions[number] = HubSubscription(self, number, wanted, sink, buffer)
        try:
            await self._ask(p.SUBSCRIBE, number, list(wanted), last, again=True)
        except BaseException:
            subscription.stop()
            raise
        return subscription

    # -- tasks that are somewhere

    def _number(self, task: str) -> int:
        # Until it is linked it does not know which store its hub has.
        return task_number(task, self.store)

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Cancel a task, or a call."""
        self._check()
        answer = await self._call("cancel", p.id_bytes(self._number(task)))
        if answer is None:
            raise UnknownTask(task)
        return cast('Literal["withdrawn", "asked", "too late"]', answer)

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Send a message to the worker of a task."""
        if len(envelope.body) > self.max_body:
            raise PayloadTooLarge(len(envelope.body), self.max_body)
        self._check()
        return bool(await self._call("tell", p.id_bytes(self._number(task)), packed(envelope)))

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task."""
        self._check()
        return _info(await self._call("lookup", p.id_bytes(self._number(task))))

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Watch a task that was submitted before."""
        self._check()
        number = self._number(task)
        future = self._ask(p.WATCH, p.id_bytes(number), again=True)
        request = next(reversed(self._requests))
        self._watchers[request] = (watcher, number, None)
        try:
            await future
        except BaseException:
            self._watchers.pop(request, None)
            self.withdraw(request)
            raise

    # -- schedules

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Put a task into a queue again and again."""
        check_subject("queue", publication.queue)
        await self._call("schedule", name, pack_publication(publication, self.max_body), *times)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        return bool(await self._call("unschedule", name))

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules."""
        return [ScheduleInfo(**each) for each in await self._call("schedules")]

    # -- administration

    async def browse(
        self, queue: str, state: Literal["ready", "delayed", "taken", "dead"] = "ready", limit: int = 100
    ) -> list[TaskInfo]:
        """Look at tasks."""
        return [_info(each) for each in await self._call_of("browse", queue, state, limit)]

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait, or the dead letters."""
        return int(await self._call_of("purge", queue, state))

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Move ready tasks to another queue."""
        check_subject("queue", target)
        return int(await self._call_of("move", source, target, limit))

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Hand nothing out, or do so again."""
        await self._call_of("pause", queue, paused)

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Put dead letters back into their queue."""
        self._check()
        numbers = None if tasks is None else [p.id_bytes(self._number(each)) for each in tasks]
        return [task_id(self.store, p.id_number(each)) for each in await self._call_of("redrive", queue, numbers)]

    async def check(self) -> list[str]:
        """Look whether the file of the hub is whole.

        Returns:
            What is wrong with it, a line each; none if it is whole.

        Raises:
            Unsupported: The hub has no disk.
            NotAuthorized: It needs permission to administer everything.
        """
        return [str(line) for line in await self._call("check")]

    async def backup(self, target: str) -> None:
        """Have the hub copy its store, as it is at one moment, to a new file of its machine. See `DiskStore.backup`.

        Args:
            target: The file, below the folder of the hub unless the path is absolute; anywhere that the hub's user may write.

        Raises:
            StoreError: The file exists, or cannot be written.
            Unsupported: The hub has no disk.
            NotAuthorized: It needs permission to administer everything.
        """
        await self._call("backup", target)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a function with each event of the hub's queues."""
        check_function("observer", observer, "an observer is a plain function of four arguments")
        self._check()
        self._observers.append(observer)
        if len(self._observers) == 1:
            self.say_if_linked(p.CALL, 0, "observe", [True])

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)
                if not self._observers and self.refusal() is None:
                    self.say_if_linked(p.CALL, 0, "observe", [False])

        return end


class HubReceipts:
    """The receipt of a publish, once it is confirmed; see `Engine.publish` for what cancelling it does.

    Attributes:
        unread: True if the task is cancelled with it, as nobody would read its outcome.
    """

    __slots__ = ("_engine", "_future", "_number", "unread")

    def __init__(self, engine: HubEngine, number: int, future: asyncio.Future[Any], unread: bool) -> None:
        self._engine = engine
        self._number = number
        self._future = future
        self.unread = unread

    def __await__(self) -> Any:
        try:
            task, known = yield from self._future.__await__()
        except asyncio.CancelledError:
            self._engine.withdraw(self._number)
            if self.unread:
                self._engine.cancel_unread(self._number, self._future)
            raise
        return _new(Receipt, (self._engine.store, p.id_number(task), known))

    def future(self) -> asyncio.Future[Any]:
        """Return the future of the answer to a publish without a watcher, which is withdrawn where that is cancelled."""
        self._future.add_done_callback(self._withdraw)
        return self._future

    def _withdraw(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            self._engine.withdraw(self._number)


def _sent(loop: asyncio.AbstractEventLoop, receipt: Any) -> Any:
    future: asyncio.Future[Receipt] = loop.create_future()
    future.set_result(Receipt("", 0))
    del receipt
    return future


def _info(values: dict[str, Any]) -> TaskInfo:
    payload, outcome = values.pop("envelope"), values.pop("outcome")
    if outcome is not None:
        kind, result, detail = outcome
        outcome = Outcome(OutcomeKind(kind), None if result is None else decode(result), detail)
    values["history"] = tuple(values["history"])
    values["after"] = tuple(values.get("after", ()))
    envelope = None
    with suppress(DecodeError):  # its history says so
        envelope = None if payload is None else decode(payload)
    return TaskInfo(**values, outcome=outcome, envelope=envelope)


def open_engine(url: EngineURL, options: Mapping[str, Any]) -> HubEngine:
    """Make the engine of a URL: ``redpoll://token@host:port,host2:port2``.

    Options, in the URL or not: wait; connect_timeout; token; tls, a file with a certificate and its key, and ca, one with
    the CAs that are trusted, or a `TLS`; and config, for all of its node.

    Raises:
        ConfigError: The URL has no host, or has a path or a password; there is no such option, or it cannot be.
    """
    given: dict[str, Any] = {**dict(url.options), **options}
    if not url.hosts or url.path or url.password is not None:
        raise ConfigError("url", str(url), "has hosts with their ports, and a token before them", "redpoll://host:port")
    for name in sorted(given.keys() - _OPTIONS):
        # Not its value: the name may be that of a token, mistyped.
        raise ConfigError(name, "…", "is no option of redpoll://", f"there are {', '.join(sorted(_OPTIONS))}")
    timeout = given.get("connect_timeout", 5.0)
    if isinstance(timeout, str):
        with suppress(ValueError):
            timeout = float(timeout)
    require("connect_timeout", timeout, seconds)
    wait = given.get("wait", False)
    if isinstance(wait, str):
        wait = wait.lower() in {"1", "true", "yes"}
    token = given.get("token", url.user)
    if token is not None and (not isinstance(token, str) or not token):
        raise ConfigError("token", "hidden", "must be text, not empty")
    config: Config | None = given.get("config")
    tls, ca = given.get("tls"), given.get("ca")
    if tls is not None or ca is not None:
        record = tls if isinstance(tls, TLS) else TLS(certificate=tls, ca=ca)
        config = Config.from_options(config, {"tls": record, "encryption": True})
    hosts = [Address.of_host(host, PORT if port is None else port) for host, port in url.hosts]
    return HubEngine(hosts, wait=wait, connect_timeout=timeout, token=token or "", config=config)


_OPTIONS: Final = frozenset({"wait", "connect_timeout", "token", "tls", "ca", "config"})
