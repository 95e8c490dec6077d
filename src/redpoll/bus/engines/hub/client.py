"""The engine ``redpoll://host:port``: queues and subjects at a hub."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import random
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, Self, cast

from redpoll.address import Address
from redpoll.bus.awaitables import Failed, fail, resolve
from redpoll.bus.engine import DeliverySink, EventSink, Observer, Watcher
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.handles import (
    HubConsumer,
    HubDelivery,
    HubSubscription,
    call,
    check_credit,
    packed,
)
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, decode
from redpoll.bus.records import (
    Capabilities,
    Event,
    QueueInfo,
    QueueSpec,
    Receipt,
    TaskInfo,
    check_publishing,
    check_subject,
    task_id,
)
from redpoll.bus.state import EngineState, Status
from redpoll.bus.urls import EngineURL
from redpoll.checks import check_function, require, seconds
from redpoll.config import Config
from redpoll.errors import (
    BatchError,
    Closed,
    ConfigError,
    DialFailed,
    Expired,
    NotConfirmed,
    PayloadTooLarge,
    ProtocolError,
    QueueEmpty,
    QueueFull,
    RedpollError,
    StaleHub,
    UnknownTask,
    UsageError,
)
from redpoll.node import Received
from redpoll.node.door import Batch, LayerNode, Peer
from redpoll.platforms import after_fork

__all__ = ["HubEngine", "open_engine"]

_log = logging.getLogger("redpoll.bus")

#: Port of a hub.
PORT: Final = 5683
#: Seconds that a short loss of the link is not noticed by anybody.
_RESUME: Final = 0.5
#: Seconds between two tries to reach a hub, at first and at most.
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
#: Bytes of publishes that wait to be sent.
_WAITING_BYTES: Final = 64 * 2**20
#: Seconds beyond its timeout that the hub's own answer to a publish may take.
_LATE: Final = 1.0
#: Seconds that outcomes have to be confirmed when an engine is closed.
_GOODBYE: Final = 5.0

_engines: weakref.WeakSet[HubEngine] = weakref.WeakSet()


class _Request:
    """Something that the hub answers.

    Attributes:
        record: What was asked for.
        future: Done with the answer.
        again: Whether it may be asked for once more, where the answer may be lost.
        sent: Whether the hub may have it.
        watcher: Of a publish.
        message: What errors call it.
    """

    __slots__ = ("again", "deadline", "future", "record", "sent", "size", "watcher")

    def __init__(
        self,
        record: list[Any],
        future: asyncio.Future[Any],
        again: bool,
        size: int = 0,
        watcher: Watcher | None = None,
    ) -> None:
        self.record = record
        self.future = future
        self.again = again
        self.sent = False
        self.size = size
        self.watcher = watcher
        self.deadline: float | None = None


class _Node(LayerNode):
    def __init__(self, engine: HubEngine, config: Config) -> None:
        super().__init__(config)
        self._engine = weakref.ref(engine)

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take records of the hub."""
        engine = self._engine()
        if engine is not None:
            engine.arrived(messages)
        return messages

    def _session_began(self, peer: Peer, renewed: bool) -> None:  # noqa: ARG002
        engine = self._engine()
        if engine is not None:
            engine.began(peer)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        engine = self._engine()
        if engine is not None:
            engine.ended(peer, error)


class HubEngine:
    """See `redpoll.bus.engine.Engine`.

    Args:
        hosts: Addresses of hubs, which are tried in turn.
        wait: Whether a hub that is not there is waited for, in the background.
        connect_timeout: Seconds that starting may take, where it does not wait.
        config: Options of its node: TLS.
    """

    def __init__(
        self,
        hosts: Iterable[Address],
        *,
        wait: bool = False,
        connect_timeout: float = 5.0,
        config: Config | None = None,
    ) -> None:
        self._hosts = tuple(hosts)
        self._wait = wait
        self._connect_timeout = connect_timeout
        self.capabilities = Capabilities(engine="redpoll", confirm="disk", results="stored", max_body=16 * 2**20)
        self.max_body = self.capabilities.max_body
        self.status = Status()
        self.store = ""
        self.linked = False
        self.loop: asyncio.AbstractEventLoop
        self._epoch = 0
        self._name = os.urandom(16).hex()
        given = Config() if config is None else config
        options = {"listen": False, "resume": _RESUME, "serializer": "raw"}
        self._node = _Node(self, Config.from_options(given, options))
        self._peer: Peer | None = None
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._watchers: dict[int, tuple[Watcher, int]] = {}
        self._consumers: dict[int, HubConsumer] = {}
        self._takes: dict[int, asyncio.Future[HubDelivery]] = {}
        # What was ended here, and may not be there, by its token: consumer, queue, task.
        self._ended: dict[int, tuple[int, str, int]] = {}
        self._subscriptions: dict[int, HubSubscription] = {}
        self._observers: list[Observer] = []
        self._out: deque[list[Any]] = deque()
        self._scheduled = False
        self._waiting_bytes = 0
        self._timeouts: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._link: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[RedpollError]
        self._welcome: asyncio.Future[None]
        self._drained: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self.closed = True
        self.forked = False
        _engines.add(self)

    def __repr__(self) -> str:
        return f"<HubEngine redpoll://{','.join(map(str, self._hosts))} {self.status.state.value}>"

    @property
    def clock(self) -> Any:
        """Its time: that of the loop."""
        return self.loop

    def refusal(self) -> RedpollError | None:
        """Return the error if it cannot be used, or None."""
        if self.forked:
            return UsageError("this bus belongs to the process that forked this one", "connect in the child")
        return Closed("bus") if self.closed else None

    def _check(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    # Life

    async def __aenter__(self) -> Self:
        """Start on the running loop, and connect."""
        if self.status.state is not EngineState.CONNECTING or self._link is not None:
            raise UsageError("this engine was started before", "make another one")
        self.loop = asyncio.get_running_loop()
        await self._node.start()
        self.closed = False
        ready: asyncio.Future[None] = self.loop.create_future()
        self._link = self.loop.create_task(self._keep_linked(ready))
        if self._wait:
            return self
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.shield(ready)
        except TimeoutError:
            await self._end()
            error = self._last_error
            if isinstance(error, DialFailed):
                raise error from None
            where = self._hosts[0]
            raise DialFailed(where, "no hub answered in time" if error is None else str(error)) from None
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop."""
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        if self.closed or self.forked:
            if not self.forked:
                self.status.change(EngineState.CLOSED)
            return
        self._closing = self.loop.create_future()
        try:
            await self._drain(drain)
        finally:
            try:
                await self._end()
            finally:
                self._closing.set_result(None)

    async def _drain(self, seconds: float | None) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.stop()
        for consumer in list(self._consumers.values()):
            consumer.stop()
        if seconds != 0 and self._open_deliveries():
            self._drained = self.loop.create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._drained

    def _open_deliveries(self) -> list[HubDelivery]:
        return [each for consumer in self._consumers.values() for each in consumer.deliveries.values()]

    def look_drained(self) -> None:
        """Settle `_drained` if no task is held any more."""
        if self._drained is not None and not self._drained.done() and not self._open_deliveries():
            self._drained.set_result(None)

    async def _end(self) -> None:
        """Say goodbye, once outcomes are confirmed; settle what is open."""
        if self.linked:
            ends = [
                each.future
                for each in self._requests.values()
                if each.record[0] in {p.DONE, p.REJECT} and not each.future.done()
            ]
            with suppress(TimeoutError):
                if ends:
                    async with asyncio.timeout(_GOODBYE):
                        await asyncio.wait(ends)
        self._settle_all()
        if self.linked:
            self.say(p.GOODBYE)
            self._flush()
        self.linked = False
        if self._link is not None:
            self._link.cancel()
            await asyncio.wait([self._link])
        await self._node.stop(0.5)
        self.status.change(EngineState.CLOSED)

    def _settle_all(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        error = Closed("bus")
        for consumer in list(self._consumers.values()):
            for delivery in list(consumer.deliveries.values()):
                delivery.lose()
        watchers, self._watchers = self._watchers, {}
        for watcher, _ in watchers.values():
            call("a watcher", watcher.gone, error)
        requests, self._requests = self._requests, {}
        for number, request in requests.items():
            if request.watcher is not None and number not in watchers:
                call("a watcher", request.watcher.gone, error)
            _fail(request.future, error)
        for future in self._takes.values():
            _fail(future, error)

    def abort(self) -> None:
        """Go without goodbye, as a process that is killed. For tests."""
        if self.refusal() is None:
            self.linked = False
            if self._link is not None:
                self._link.cancel()
            if self._peer is not None:
                self._node.cut(self._peer, Closed("bus"))
            self._settle_all()
            self.status.change(EngineState.CLOSED, "aborted")
            task = self.loop.create_task(self._node.stop(0))
            self._aborted = task

    # The link

    _last_error: RedpollError | None = None

    async def _keep_linked(self, ready: asyncio.Future[None]) -> None:
        """Be linked to one of the hubs, always."""
        pause = _PAUSE
        for address in itertools.cycle(self._hosts):
            self._lost = self.loop.create_future()
            self._welcome = self.loop.create_future()
            try:
                await self._node.ready(address, timeout=self._connect_timeout)
                async with asyncio.timeout(self._connect_timeout):
                    await self._greeted()
            except TimeoutError as error:
                self._failed(error if isinstance(error, RedpollError) else DialFailed(address, "no hub answers"))
            except RedpollError as error:
                self._failed(error)
            else:
                pause = _PAUSE
                self._last_error = None
                self._rejoin()
                self.status.change(EngineState.READY)
                resolve(ready)
                why = await self._lost
                self._unlinked(why)
                self.status.change(EngineState.RECONNECTING, str(why))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _greeted(self) -> None:
        either: list[asyncio.Future[Any]] = [self._lost, self._welcome]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._welcome.done():
            raise self._lost.result()
        self._welcome.result()

    def _failed(self, error: RedpollError) -> None:
        self._last_error = error
        self._peer = None
        if isinstance(error, StaleHub):
            self.status.change(EngineState.DEGRADED, str(error))

    def began(self, peer: Peer) -> None:
        """For the node: there is a session with a hub."""
        if not self.closed:
            self._peer = peer
            self._send([[p.HELLO, p.VERSION, self._name]], ())

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """For the node: it is over."""
        if peer is self._peer:
            self._peer = None
            self.linked = False
            if not self._lost.done():
                self._lost.set_result(error)

    def _welcomed(self, version: int, store: str, epoch: int, confirm: Any, max_body: int) -> None:
        if self._welcome.done():
            return
        if version != p.VERSION:
            self._welcome.set_exception(ProtocolError(f"the hub speaks version {version} of the bus"))
            return
        if store == self.store and epoch < self._epoch:
            self._welcome.set_exception(StaleHub(store, epoch, self._epoch))
            return
        self.store, self._epoch = store, epoch
        self.max_body = max_body
        self.capabilities = Capabilities(engine="redpoll", confirm=confirm, results="stored", max_body=max_body)
        self._welcome.set_result(None)

    def _unlinked(self, error: RedpollError) -> None:
        """Keep what may be asked for again, and settle the rest."""
        waiting = {id(record) for record in self._out}
        self._out.clear()
        self._waiting_bytes = 0
        for number, request in list(self._requests.items()):
            if id(request.record) in waiting or not request.sent or request.again:
                continue
            del self._requests[number]
            self._give_up(request, NotConfirmed(None, f"the hub is gone: {error}"))

    def _give_up(self, request: _Request, error: RedpollError) -> None:
        if request.watcher is not None:
            call("a watcher", request.watcher.gone, error)
        _fail(request.future, error)

    def _rejoin(self) -> None:
        """Ask for everything that this engine has: consumers, what they hold, subscriptions, watchers, answers."""
        self.linked = True
        fresh, self._out = list(self._out), deque()
        for consumer in list(self._consumers.values()):
            record = [consumer.number, consumer.queue, 0, consumer.accept, consumer.exclusive, True]
            self.say(p.CONSUME, self._ask_consumer(consumer), *record)
            for delivery in list(consumer.deliveries.values()):
                self.say(
                    p.RECLAIM, self._ask_reclaim(delivery), consumer.number, _bytes(delivery.number), delivery.token
                )
        # What ends deliveries that are not open here any more stands among the requests.
        for request in list(self._requests.values()):
            self._reclaim_ended(request)
        self.say(p.SETTLE)
        for consumer in list(self._consumers.values()):
            if consumer.closed:
                self.say(p.CLOSE, 0, consumer.number)
            elif consumer.credit > len(consumer.deliveries):
                self.say(p.CREDIT, consumer.number, consumer.credit - len(consumer.deliveries))
        for subscription in self._subscriptions.values():
            self.say(p.SUBSCRIBE, 0, subscription.number, list(subscription.patterns), False)
        for number, (_, task) in list(self._watchers.items()):
            if task:
                self.say(p.WATCH, number, _bytes(task))
        if self._observers:
            self.say(p.CALL, 0, "observe", [True])
        for record in fresh:
            if record[0] not in {p.CREDIT, p.CLOSE, p.SUBSCRIBE, p.UNSUBSCRIBE, p.PROGRESS}:
                self._out.append(record)
        known = {id(record) for record in self._out}
        for number, request in list(self._requests.items()):
            if number in self._requests and id(request.record) not in known and request.record[0] not in _REJOINED:
                self._push(request)
        self._schedule()

    def _ask_consumer(self, consumer: HubConsumer) -> int:
        def answer(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is not None and not self.closed:
                error = future.exception()
                consumer.stop(error if isinstance(error, Exception) else None)

        return self._expect(answer, p.CONSUME)

    def _ask_reclaim(self, delivery: HubDelivery) -> int:
        def answer(future: asyncio.Future[Any]) -> None:
            if (
                not self.closed
                and not future.cancelled()
                and (future.exception() is not None or future.result() != "held")
            ):
                delivery.lose()

        return self._expect(answer, p.RECLAIM)

    def _reclaim_ended(self, request: _Request) -> None:
        """Ask for a delivery that has ended here, and whose end the hub may not have."""
        record = request.record
        if record[0] not in {p.DONE, p.REJECT, p.ACCEPT} or record[0] == p.ACCEPT:
            return
        ended = self._ended.get(record[3])
        if ended is not None and ended[0] not in self._consumers:
            number, queue, _ = ended
            self.say(p.CONSUME, 0, number, queue, 0, False, False, False)
        if ended is not None:
            self.say(p.RECLAIM, 0, ended[0], _bytes(ended[2]), record[3])
            if ended[0] not in self._consumers:
                self.say(p.CLOSE, 0, ended[0])

    def _expect(self, answer: Callable[[asyncio.Future[Any]], None], kind: int) -> int:
        number = next(self._numbers)
        future: asyncio.Future[Any] = self.loop.create_future()
        future.add_done_callback(answer)
        self._requests[number] = request = _Request([kind], future, False)
        request.sent = True
        return number

    # Sending

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

    def _flush(self) -> None:
        self._scheduled = False
        waiting = self._out
        requests = self._requests
        while waiting and self.linked and self._peer is not None:
            if self._node.room(self._peer) <= 0:
                self._scheduled = True
                self._node.when_room(self._peer, self._flush)
                return
            part = [waiting.popleft() for _ in range(min(len(waiting), 1024))]
            asked: list[_Request] = []
            for record in part:
                if len(record) > 1 and record[0] in _ANSWERED:
                    request = requests.get(record[1])
                    if request is not None and request.record is record:
                        request.sent = True
                        self._waiting_bytes -= request.size
                        asked.append(request)
            self._send(part, asked)

    def _send(self, records: list[list[Any]], asked: Iterable[_Request]) -> None:
        if self._peer is None:
            return
        bodies = [body for body, _ in p.pack(records)]
        requests = tuple(asked)

        def done(batch: Batch) -> None:
            # Never sent, all of it: it may be sent again.
            if len(batch.failed) == batch.count and not any(getattr(error, "sent", True) for _, error in batch.failed):
                for request in requests:
                    request.sent = False

        self._node.send_batch(self._peer, [(b"", body) for body in bodies], done)

    def _ask(
        self,
        kind: int,
        *rest: Any,
        again: bool,
        size: int = 0,
        watcher: Watcher | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[Any]:
        number = next(self._numbers)
        future: asyncio.Future[Any] = self.loop.create_future()
        request = _Request([kind, number, *rest], future, again, size, watcher)
        self._requests[number] = request
        if timeout is not None:
            self._limit(number, timeout)
        self._push(request)
        return future

    def _push(self, request: _Request) -> None:
        request.sent = False
        self._waiting_bytes += request.size
        self._out.append(request.record)
        self._schedule()

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._check()
        return self._ask(p.CALL, name, list(arguments), again=name not in {"redrive", "move"})

    def tell_end(self, kind: int, number: int, token: int, *rest: Any) -> Awaitable[bool]:
        """For deliveries: accept one, or end it; False where it was lost."""
        if self.refusal() is not None:
            return Failed(Closed("bus")) if self.forked else _false(self.loop)
        consumer = self._consumers.get(number)
        if consumer is not None and kind != p.ACCEPT:
            delivery = consumer.deliveries.get(token)
            if delivery is not None:
                self._ended[token] = (number, consumer.queue, delivery.number)
        future = self._ask(kind, number, token, *rest, again=True)
        if kind != p.ACCEPT:
            future.add_done_callback(lambda _: self._ended.pop(token, None))
        return future

    # Timeouts of publishes

    def _limit(self, number: int, timeout: float) -> None:
        when = self.loop.time() + timeout
        heapq.heappush(self._timeouts, (when, number))
        if self._timeouts[0][1] == number:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, self._time_out)

    def _time_out(self) -> None:
        now = self.loop.time()
        timeouts = self._timeouts
        while timeouts and timeouts[0][0] <= now:
            when, number = heapq.heappop(timeouts)
            request = self._requests.get(number)
            if request is None:
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
                with suppress(ValueError):
                    self._out.remove(request.record)
                error = Expired(None, request.record[-1], "waiting for the hub")
            self._give_up(request, error)
        while timeouts and timeouts[0][1] not in self._requests:
            heapq.heappop(timeouts)
        self._timer = self.loop.call_at(timeouts[0][0], self._time_out) if timeouts else None

    # Receiving

    def arrived(self, messages: list[Received[Any]]) -> None:
        """For the node: records of the hub."""
        try:
            for message in messages:
                for record in p.unpack(message.data, p.FROM_HUB):
                    _TAKE[record[0]](self, *record[1:])
        except ProtocolError as error:
            _log.warning("the hub breaks the rules: %s", error)
            if self._peer is not None:
                self._node.cut(self._peer, error)

    def _replied(self, number: int, value: Any) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        if request.watcher is not None and isinstance(value, list) and value[0]:
            self._watchers[number] = (request.watcher, _number(value[0]))
        if not request.future.done():
            request.future.set_result(value)

    def _refused(self, number: int, values: list[Any]) -> None:
        error = p.rebuild_error(values)
        request = self._requests.pop(number, None)
        if request is not None:
            _fail(request.future, error)
            return
        watched = self._watchers.pop(number, None)
        if watched is not None:
            # It was asked for again.
            call("a watcher", watched[0].gone, NotConfirmed(None, f"its outcome is not known: {error}"))

    def _delivered(
        self, number: int, token: int, task: bytes, attempt: int, left: float | None, payload: bytes
    ) -> None:
        consumer = self._consumers.get(number)
        if consumer is None:
            self.say(p.REJECT, 0, number, token, True, 0.0, False, False, "", None)
            return
        ends = None if left is None else self.loop.time() + left
        consumer.deliver(HubDelivery(consumer, token, _number(task), attempt, ends, decode(payload)))

    def _ended_task(self, number: int, kind: int, payload: bytes | None, detail: str) -> None:
        watched = self._watchers.pop(number, None)
        watcher = None if watched is None else watched[0]
        if watcher is None:
            request = self._requests.get(number)
            if request is None or request.watcher is None:
                return
            watcher, request.watcher = request.watcher, None
        outcome = Outcome(OutcomeKind(kind), None if payload is None else decode(payload), detail)
        call("a watcher", watcher.outcome, outcome)

    def _progressed(self, number: int, payload: bytes) -> None:
        watched = self._watchers.get(number)
        if watched is not None:
            call("a watcher", watched[0].progress, decode(payload))
            return
        request = self._requests.get(number)
        if request is not None and request.watcher is not None:
            call("a watcher", request.watcher.progress, decode(payload))

    def _delivery(self, number: int, token: int) -> HubDelivery | None:
        consumer = self._consumers.get(number)
        return None if consumer is None else consumer.deliveries.get(token)

    def _cancelled(self, number: int, token: int, reason: str) -> None:
        delivery = self._delivery(number, token)
        if delivery is not None:
            delivery.cancel(reason)

    def _told(self, number: int, token: int, payload: bytes) -> None:
        delivery = self._delivery(number, token)
        if delivery is not None:
            delivery.tell(decode(payload))

    def _stopped(self, number: int, reason: str) -> None:
        from redpoll.errors import NoRoute

        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.stop(NoRoute(consumer.queue, reason))

    def _events(self, numbers: list[Any], subject: str, payload: bytes, kept: bool) -> None:
        event = Event(subject, decode(payload), kept)
        for number in numbers:
            subscription = self._subscriptions.get(number)
            if subscription is not None:
                subscription.take(event)

    def _noted(self, what: str, queue: str, task: bytes, detail: str) -> None:
        number = _number(task)
        name = task_id(self.store, number) if number else ""
        for observer in tuple(self._observers):
            call("an observer", observer, what, queue, name, detail)

    # -- queues

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Make sure that a queue is there."""
        values = {name: getattr(spec, name) for name in QueueSpec.__dataclass_fields__}
        await self._call("declare", {**values, "topics": list(spec.topics)}, update)

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue."""
        await self._call("delete", queue, if_unused)

    async def queues(self) -> list[str]:
        """Return the names of all queues."""
        return cast("list[str]", await self._call("queues"))

    async def inspect(self, queue: str) -> QueueInfo:
        """Return the contents and counters of a queue."""
        values = await self._call("inspect", queue)
        spec = values.pop("spec")
        return QueueInfo(spec=QueueSpec(**{**spec, "topics": tuple(spec["topics"])}), **values)

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
        if subject is not None:
            check_subject("subject", subject)
            if type(last) is not int or last < 0:
                raise ConfigError("last", last, "must be an int, 0 or more")
        refusal = self.refusal()
        if refusal is not None:
            return Failed(refusal)
        if self._waiting_bytes + size > _WAITING_BYTES and self._waiting_bytes:
            return Failed(QueueFull(None, _WAITING_BYTES, "bytes", queue=queue or subject))
        if not self.linked and timeout is not None and timeout <= 0:
            return Failed(Expired(None, timeout, "waiting for the hub"))
        payload = packed(envelope)
        limit = min((each for each in (timeout, ttl, deadline) if each is not None), default=None)
        if queue is not None:
            future = self._ask(
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
                timeout,
                again=dedup is not None,
                size=len(payload),
                watcher=watcher,
                timeout=limit,
            )
        else:
            future = self._ask(
                p.EVENT,
                subject,
                payload,
                mandatory,
                last,
                timeout,
                again=False,
                size=len(payload),
                timeout=limit,
            )
        number = next(reversed(self._requests))
        receipt = _Receipts(self, number, future)
        return receipt if confirm else _sent(self.loop, receipt)

    def publish_many(
        self,
        envelopes: Iterable[Envelope],
        *,
        queue: str,
        watchers: Iterable[Watcher] | None = None,
        dedup: Iterable[str] | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keep: bool = True,
        timeout: float | None = None,
    ) -> Awaitable[list[Receipt]]:
        """Put many tasks into a queue, in order."""
        items = list(envelopes)
        count = len(items)
        watched: list[Watcher | None] = [None] * count if watchers is None else list(watchers)
        keys: list[str | None] = [None] * count if dedup is None else list(dedup)
        if not count == len(watched) == len(keys):
            raise UsageError(f"{count} envelopes have {len(watched)} watchers and {len(keys)} keys")
        for envelope in items:
            if len(envelope.body) > self.max_body:
                raise PayloadTooLarge(len(envelope.body), self.max_body)
        for key in keys:
            check_publishing(priority, delay, ttl, None, timeout, key)
        return asyncio.ensure_future(
            self._publish_all(items, queue, watched, keys, priority, delay, ttl, keep, timeout)
        )

    async def _publish_all(
        self,
        items: list[Envelope],
        queue: str,
        watched: list[Watcher | None],
        keys: list[str | None],
        priority: int,
        delay: float,
        ttl: float | None,
        keep: bool,
        timeout: float | None,
    ) -> list[Receipt]:
        end = None if timeout is None else self.loop.time() + timeout
        receipts: list[Receipt] = []
        open_: deque[Awaitable[Receipt]] = deque()
        number = 0
        while len(receipts) < len(items):
            while number < len(items) and len(open_) < 1024:
                open_.append(
                    self.publish(
                        items[number],
                        queue=queue,
                        watcher=watched[number],
                        priority=priority,
                        delay=delay,
                        ttl=ttl,
                        dedup=keys[number],
                        keep=keep,
                        timeout=None if end is None else max(0.0, end - self.loop.time()),
                    )
                )
                number += 1
            try:
                receipts.append(await open_.popleft())
            except RedpollError as error:
                raise BatchError(len(receipts), len(receipts), error) from error
        return receipts

    def withdraw(self, number: int) -> None:
        """For publishes that nobody waits for any more."""
        request = self._requests.get(number)
        if request is None or self.refusal() is not None:
            return
        if request.sent:
            self.say_if_linked(p.WITHDRAW, number)
        else:
            del self._requests[number]
            with suppress(ValueError):
                self._out.remove(request.record)
                self._waiting_bytes -= request.size

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
    ) -> HubConsumer:
        """Take tasks from a queue as they come."""
        check_credit(credit)
        self._check()
        number = next(self._numbers)
        consumer = self._consumers[number] = HubConsumer(self, number, queue, credit, sink, accept, exclusive)
        try:
            await self._ask(p.CONSUME, number, queue, credit, accept, exclusive, True, again=True)
        except BaseException:
            consumer.stop()
            raise
        return consumer

    async def take(self, queue: str, timeout: float | None = 0.0) -> HubDelivery:
        """Take one task, in turn with the consumers."""
        check_publishing(0, 0.0, timeout=timeout)
        self._check()
        number = next(self._numbers)
        future: asyncio.Future[HubDelivery] = self.loop.create_future()
        consumer = HubConsumer(self, number, queue, 1, lambda delivery: _hand(future, delivery), False, False)
        self._consumers[number] = consumer
        self._takes[number] = future
        timer = None
        try:
            if timeout == 0:
                if not await self._ask(p.TAKE, number, queue, again=False):
                    fail(future, QueueEmpty(queue, timeout))
            else:
                if timeout is not None:
                    timer = self.loop.call_later(timeout, fail, future, QueueEmpty(queue, timeout))
                await self._ask(p.CONSUME, number, queue, 1, False, False, False, again=True)
            delivery = await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().reject()
            raise
        finally:
            self._takes.pop(number, None)
            if timer is not None:
                timer.cancel()
            if not self.closed:
                consumer.stop()
        return delivery

    async def subscribe(
        self,
        patterns: Iterable[str],
        *,
        sink: EventSink | None = None,
        last: bool = False,
        buffer: int = 1_000,
    ) -> HubSubscription:
        """Take the events of the subjects that match."""
        if type(buffer) is not int or buffer < 1:
            raise ConfigError("buffer", buffer, "must be an int above 0")
        wanted = tuple(patterns)
        if not wanted:
            raise ConfigError("patterns", wanted, "must be at least one")
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

    # -- for what it handed out

    def close_consumer(self, consumer: HubConsumer) -> Awaitable[Any] | None:
        """Have a consumer take no more."""
        if self.linked and not self.closed:
            return self._ask(p.CLOSE, consumer.number, again=False)
        return None

    def forget(self, consumer: HubConsumer) -> None:
        """A closed consumer has no open delivery."""
        self._consumers.pop(consumer.number, None)

    def unsubscribe(self, subscription: HubSubscription) -> None:
        """End a subscription."""
        if self._subscriptions.pop(subscription.number, None) is not None:
            self.say_if_linked(p.UNSUBSCRIBE, subscription.number)

    # -- tasks that are somewhere

    def _number(self, task: str) -> int:
        store, _, rest = task.rpartition("-")[0].rpartition("-")
        with suppress(ValueError):
            number = (int(rest) << 64) | int(task.rpartition("-")[2], 16)
            if store == self.store and task_id(store, number) == task:
                return number
        raise UnknownTask(task)

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Cancel a task, or a call."""
        self._check()
        answer = await self._call("cancel", _bytes(self._number(task)))
        if answer is None:
            raise UnknownTask(task)
        return cast('Literal["withdrawn", "asked", "too late"]', answer)

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Send a message to the worker of a task."""
        if len(envelope.body) > self.max_body:
            raise PayloadTooLarge(len(envelope.body), self.max_body)
        self._check()
        return bool(await self._call("tell", _bytes(self._number(task)), packed(envelope)))

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task."""
        self._check()
        return _info(await self._call("lookup", _bytes(self._number(task))))

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Watch a task that was submitted before."""
        self._check()
        number = self._number(task)
        future = self._ask(p.WATCH, _bytes(number), again=True)
        request = next(reversed(self._requests))
        self._watchers[request] = (watcher, number)
        try:
            await future
        except RedpollError:
            self._watchers.pop(request, None)
            raise

    def unwatch(self, task: str, watcher: Watcher) -> None:
        """Tell this watcher nothing more."""
        if self.refusal() is None:
            number = self._number(task)
            for request, watched in list(self._watchers.items()):
                if watched == (watcher, number):
                    del self._watchers[request]
                    self.say_if_linked(p.UNWATCH, request, _bytes(number))

    # -- administration

    async def browse(
        self, queue: str, state: Literal["ready", "delayed", "taken", "dead"] = "ready", limit: int = 100
    ) -> list[TaskInfo]:
        """Look at tasks."""
        return [_info(each) for each in await self._call("browse", queue, state, limit)]

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait, or the dead letters."""
        return int(await self._call("purge", queue, state))

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Move ready tasks to another queue."""
        return int(await self._call("move", source, target, limit))

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Hand nothing out, or do so again."""
        await self._call("pause", queue, paused)

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Put dead letters back into their queue."""
        self._check()
        numbers = None if tasks is None else [_bytes(self._number(each)) for each in tasks]
        return [task_id(self.store, _number(each)) for each in await self._call("redrive", queue, numbers)]

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


class _Receipts:
    """The receipt of a publish, once it is confirmed; cancelling who awaits it withdraws what waits for room."""

    __slots__ = ("_engine", "_future", "_number")

    def __init__(self, engine: HubEngine, number: int, future: asyncio.Future[Any]) -> None:
        self._engine = engine
        self._number = number
        self._future = future

    def __await__(self) -> Any:
        try:
            task, known = yield from self._future.__await__()
        except asyncio.CancelledError:
            self._engine.withdraw(self._number)
            raise
        return Receipt(self._engine.store, _number(task), known)


def _sent(loop: asyncio.AbstractEventLoop, receipt: Any) -> Any:
    future: asyncio.Future[Receipt] = loop.create_future()
    future.set_result(Receipt("", 0))
    del receipt
    return future


def _false(loop: asyncio.AbstractEventLoop) -> Awaitable[bool]:
    future: asyncio.Future[bool] = loop.create_future()
    future.set_result(False)
    return future


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # it may never be awaited


def _hand(future: asyncio.Future[HubDelivery], delivery: Any) -> None:
    if future.done():
        delivery.reject()
    else:
        future.set_result(delivery)


def _bytes(number: int) -> bytes:
    return number.to_bytes(16)


def _number(task: bytes) -> int:
    return int.from_bytes(task)


def _info(values: dict[str, Any]) -> TaskInfo:
    payload = values.pop("payload", None)
    outcome = values.pop("outcome", None)
    if outcome is not None:
        kind, result, detail = outcome
        outcome = Outcome(OutcomeKind(kind), None if result is None else decode(result), detail)
    values["history"] = tuple(values["history"])
    return TaskInfo(**values, outcome=outcome, envelope=None if payload is None else decode(payload))


#: Kinds of records that begin with the number of a request.
_ANSWERED: Final = frozenset(
    {
        p.PUBLISH,
        p.EVENT,
        p.CONSUME,
        p.TAKE,
        p.CLOSE,
        p.RECLAIM,
        p.ACCEPT,
        p.DONE,
        p.REJECT,
        p.SUBSCRIBE,
        p.WATCH,
        p.CALL,
    }
)
#: Of these, what is asked for anew where it is asked for after the link was lost.
_REJOINED: Final = frozenset({p.CONSUME, p.RECLAIM, p.SUBSCRIBE, p.WATCH})

_TAKE: Final[Mapping[int, Callable[..., None]]] = {
    p.WELCOME: HubEngine._welcomed,
    p.REPLY: HubEngine._replied,
    p.FAILED: HubEngine._refused,
    p.DELIVER: HubEngine._delivered,
    p.OUTCOME: HubEngine._ended_task,
    p.PROGRESSED: HubEngine._progressed,
    p.CANCELLED: HubEngine._cancelled,
    p.TOLD: HubEngine._told,
    p.STOPPED: HubEngine._stopped,
    p.EVENTS: HubEngine._events,
    p.NOTE: HubEngine._noted,
}


def _after_fork() -> None:
    for engine in _engines:
        engine.forked = engine.closed = True


after_fork(_after_fork)


def open_engine(url: EngineURL, options: Mapping[str, Any]) -> HubEngine:
    """Make the engine of a URL: ``redpoll://host:port,host2:port2``, with the options wait, connect_timeout and config.

    Raises:
        ConfigError: The URL has no host, or has a path; or there is no such option.
    """
    given: dict[str, Any] = {**dict(url.options), **options}
    if not url.hosts or url.path or url.user:
        raise ConfigError("url", str(url), "has hosts with their ports and nothing else", "redpoll://host:port")
    for name, value in given.items():
        if name not in {"wait", "connect_timeout", "config"}:
            raise ConfigError(name, value, "is no option of redpoll://")
    timeout = given.get("connect_timeout", 5.0)
    if isinstance(timeout, str):
        with suppress(ValueError):
            timeout = float(timeout)
    require("connect_timeout", timeout, seconds)
    wait = given.get("wait", False)
    if isinstance(wait, str):
        wait = wait.lower() in {"1", "true", "yes"}
    hosts = [Address.of_host(host, PORT if port is None else port) for host, port in url.hosts]
    return HubEngine(hosts, wait=wait, connect_timeout=timeout, config=given.get("config"))
