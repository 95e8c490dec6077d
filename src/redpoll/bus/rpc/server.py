"""Servers of calls: each call is accepted, done at most once, and answered."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from redpoll.bus.awaitables import unexpected
from redpoll.bus.context import CURRENT, Context
from redpoll.bus.engine import Clock, Delivery, Engine, Timer
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import pack_failure
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.records import Event
from redpoll.bus.rpc.endpoints import Endpoints, Method, MethodKind
from redpoll.bus.rpc.target import Target, queue_name, queue_spec, subject_name
from redpoll.bus.service import FUTURES, ProgramEnds, Service, Source
from redpoll.errors import RedpollError, RemoteError, ResultTooLarge, UnknownTask, Unsupported
from redpoll.node.reports import Repeated

__all__ = ["CREDIT", "METHOD", "MONITOR", "NAMESPACE", "NUMBER", "SENT", "VERSION", "WINDOW", "Server"]

_log = logging.getLogger("redpoll.bus.rpc")

# The keys of the fields of a call beside its arguments, and of the fields of a stream.
METHOD: Final = "m"
NAMESPACE: Final = "n"
VERSION: Final = "v"
#: Seconds between signs of life that the caller wants.
MONITOR: Final = "b"
#: Parts that the caller of a stream takes at first, and then how many in all.
WINDOW: Final = "w"
CREDIT: Final = "c"
#: The number of a part, from 0; and at the end, how many there were.
NUMBER: Final = "#"
#: How many parts were sent, for a caller that gives credit again that the server has: parts may be lost.
SENT: Final = "s"

#: Looked up once: these are on the way of every call.
_COROUTINE: Final = MethodKind.COROUTINE
_RESULT: Final = OutcomeKind.RESULT
_new: Final = tuple.__new__

LOOK = 30.0
"""Seconds between two looks of the server of a stream whether its caller is still there."""
_SHORTEST: Final = 0.05
#: Messages to all servers that wait in one of them; the oldest leaves first.
_EVENTS: Final = 1_000
_BEAT: Final = Envelope("raw", b"")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CANCELLED: Final = Outcome(OutcomeKind.CANCELLED, None, "cancelled by its server")


class _Call:
    """A running call, and the listener of its delivery."""

    __slots__ = ("_cancel", "credit", "delivery", "envelope", "stoppable", "task", "woken")

    def __init__(
        self, envelope: Envelope, delivery: Delivery | None, cancel: Callable[[asyncio.Task[None]], None]
    ) -> None:
        self._cancel = cancel
        self.envelope = envelope
        self.delivery = delivery
        self.task: asyncio.Task[None] | None = None
        # A thread cannot be stopped: its handler looks at the context.
        self.stoppable = True
        self.credit = 0
        self.woken: asyncio.Future[None] | None = None

    def lost(self) -> None:
        """Cancel the call: the engine was closed, or its server was declared dead."""
        self.cancelled("lost")

    def cancelled(self, _: str) -> None:
        """Cancel the call: the reply is not wanted any more."""
        if self.task is not None and self.stoppable:
            self._cancel(self.task)

    def told(self, envelope: Envelope) -> None:
        """Take the credit of the caller of a stream."""
        self.set_credit((envelope.meta or _NOTHING).get(CREDIT))

    def set_credit(self, parts: object) -> None:
        """Let so many parts be sent in all; a lower number changes nothing, as anything but a number."""
        if type(parts) is int and parts > self.credit:
            self.credit = parts
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


class Server(Service):
    """Serves a target. Made by ``bus.rpc.serve``.

    A call that was begun is never given to another server; pending ones are. A call that does not end in time when the
    server is closed is cancelled, and its caller gets `TaskCancelled`.

    Args:
        engine: The engine of its queues.
        payloads: The serializers.
        target: Its address; it shares the calls of the topic, and has those for its server's name, if it has one.
        endpoints: The endpoints.
        concurrency: Calls at a time from each of its queues; and messages to all servers, apart from these.
        exclusive: Refuse to start beside another server of the topic.
        drain: Seconds that calls have to end when the context is left; None is no limit.
        running: The set that it is in while it serves, for its owner.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        target: Target,
        endpoints: Endpoints,
        *,
        concurrency: int,
        exclusive: bool,
        drain: float | None,
        running: set[Service],
    ) -> None:
        super().__init__(concurrency, drain, running)
        self.target = target
        self._engine = engine
        self._payloads = payloads
        self._endpoints = endpoints
        self._exclusive = exclusive
        # Messages to all servers that wait for one of them to end, and how many are being done.
        self._events: deque[_Call] = deque(maxlen=_EVENTS)
        self._telling = 0
        self._failures = Repeated(_log_failed)

    def __repr__(self) -> str:
        return f"<Server {self.target.title!r} {'active' if self.active else 'inactive'}, {len(self._tasks)} calls>"

    async def _open(self, sources: list[Source]) -> None:
        queues = [queue_name(self.target(server=None))]
        if self.target.server is not None:
            queues.append(queue_name(self.target))
        options = {"credit": self.concurrency, "sink": self._take, "accept": True}
        for name in queues:
            exclusive = self._exclusive and name == queues[0]
            sources.append(
                await LastingConsumer.declared(self._engine, queue_spec(name), **options, exclusive=exclusive)
            )
        sources.append(await self._engine.subscribe([subject_name(self.target)], sink=self._take_event))

    def _stopping(self) -> None:
        self._events.clear()
        self._failures.close()

    def _unbegun(self, item: _Call) -> None:
        self._give_back(item, "its server was stopped")

    def _give_back(self, item: _Call, reason: str, delay: float = 0.0) -> None:
        if item.delivery is None:
            self._told_one()
        else:
            # Another server may do it; if nobody waits for it any more, that is its end.
            item.delivery.reject(delay=delay, reason=reason)

    # -- calls

    def _take(self, delivery: Delivery) -> None:
        call = _Call(delivery.envelope, delivery, self._cancel)
        call.task = self._begin(self._serve(call), call)
        if call.task is not None:
            delivery.listen(call)

    def _take_event(self, event: Event) -> None:
        self._events.append(_Call(event.envelope, None, self._cancel))
        self._next_event()

    def _next_event(self) -> None:
        if self._events and self._telling < self.concurrency:
            self._telling += 1
            call = self._events.popleft()
            call.task = self._begin(self._serve(call), call)

    def _told_one(self) -> None:
        self._telling -= 1
        # In another turn, lest each begins inside of the one before.
        self._loop.call_soon(self._next_event)

    async def _serve(self, call: _Call) -> None:
        envelope, delivery = call.envelope, call.delivery
        meta = envelope.meta or _NOTHING
        method = None
        try:
            # Most calls name a method, and nothing else; messages not even that.
            name = meta.get(METHOD)
            method = self._endpoints.plain.get(name) if len(meta) == (name is not None) else None
            simple = method is not None and method.kind is _COROUTINE
            if method is None:
                method = self._endpoints.find(name, meta.get(NAMESPACE), meta.get(VERSION))
            CURRENT.set(_new(Context, (envelope.headers or _NOTHING, delivery)))
            value = self._payloads.unpack(envelope)
            if method.keywords and type(value) is not dict:
                value = _keywords(name, value)
            if simple:
                result = await (method.function(**value) if method.keywords else method.function(value))
                reply = self._payloads.pack(await self._awaited(result) if isinstance(result, FUTURES) else result)
            else:
                reply = await self._run(call, meta, method, value)
            outcome = _new(Outcome, (_RESULT, reply, ""))
        except asyncio.CancelledError:
            outcome = _CANCELLED
        except ProgramEnds as error:
            self._give_back(call, str(error), delay=1.0)  # nobody else may be there
            if call.task is not None:
                self._ended(call.task)
            return
        except GeneratorExit as error:
            outcome = self._failure(method, meta, unexpected(error, call.task))
        except Exception as error:  # noqa: BLE001  # a handler may raise anything
            outcome = self._failure(method, meta, error)
        if delivery is None:
            self._told_one()
        else:
            try:
                delivery.ack(outcome)
            except ResultTooLarge as error:
                delivery.ack(self._failure(method, meta, error))
        if call.task is not None:
            self._ended(call.task)

    async def _run(self, call: _Call, meta: Mapping[str, Any], method: Method, value: Any) -> Envelope:
        """Run a method that needs more than an await: threads, streams, signs of life."""
        streams = method.kind is MethodKind.STREAM
        if streams is not (WINDOW in meta):
            raise TypeError(f"the method {'streams: use stream()' if streams else 'does not stream: use call()'}")
        function = partial(method.function, **value) if method.keywords else partial(method.function, value)
        beats = _Beats(self._engine.clock, call.delivery, meta.get(MONITOR))
        try:
            if streams:
                return await self._stream(call, function(), meta[WINDOW])
            if method.kind is MethodKind.PLAIN:
                call.stoppable = False
                result = await self._in_thread(function)
            else:
                result = await function()
            return self._payloads.pack(await self._awaited(result))
        finally:
            beats.stop()

    async def _stream(self, call: _Call, parts: AsyncGenerator[Any], window: object) -> Envelope:
        """Send parts within the caller's credit, until it leaves."""
        call.set_credit(window)
        number = 0
        async with aclosing(parts), _Looks(self._engine, call):
            while call.delivery is not None:
                while call.credit <= number:
                    call.woken = self._loop.create_future()
                    await call.woken
                    if call.credit <= number:
                        call.delivery.progress(Envelope("raw", b"", {SENT: number}))
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    break
                sent = call.delivery.progress(self._payloads.pack(part, {NUMBER: number}))
                # One that was not sent counts too: a caller that is there after all misses it.
                number += 1
                if not sent:
                    break
        return self._payloads.pack(None, {NUMBER: number})

    def _failure(self, method: Method | None, meta: Mapping[str, Any], error: Exception) -> Outcome:
        name = f"{self.target.title!r}: {meta.get(METHOD) or 'message'}"
        if method is None and isinstance(error, RemoteError):
            _log.debug("call of %s: %s", name, error)
            return Outcome(OutcomeKind.ERROR, pack_failure(error))
        expected = method is not None and isinstance(error, method.expected)
        if expected:
            _log.debug("call of %s raised %r, which is expected", name, error)
        else:
            self._failures.note((name, error))
        return Outcome(OutcomeKind.ERROR, pack_failure(error, traceback=not expected))


def _log_failed(count: int, last: tuple[str, Exception]) -> None:
    what, error = last
    _log.error("%s %s failed", "call of" if count == 1 else f"{count:,} calls, the last one of", what, exc_info=error)


def _keywords(name: object, value: object) -> dict[str, Any]:
    """Return the keywords of a method, as a caller in another language or with another serializer may send them.

    Raises:
        TypeError: They are no mapping.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}() takes keywords: expected a mapping of them, not {type(value).__name__}")
    return dict(value)


class _Beats:
    """Signs of life for a caller that asked for them: two in each of its periods."""

    def __init__(self, clock: Clock, delivery: Delivery | None, period: object) -> None:
        self._clock = clock
        self._delivery = delivery
        self._timer: Timer | None = None
        if type(period) in {int, float} and delivery is not None:
            self._every = max(_SHORTEST, period / 2)  # type: ignore[operator]
            self._beat()

    def _beat(self) -> None:
        if self._delivery is not None and self._delivery.progress(_BEAT):
            self._timer = self._clock.call_at(self._clock.time() + self._every, self._beat)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()


class _Looks:
    """Looks after the caller of a stream, and cancels the stream once the caller is gone, as where it was killed.

    Its generator may wait for something that never happens, and its server for credit.
    """

    def __init__(self, engine: Engine, call: _Call) -> None:
        self._engine = engine
        self._call = call
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        """Look from time to time."""
        self._arm()

    async def __aexit__(self, *exc_info: object) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def _arm(self) -> None:
        clock = self._engine.clock
        self._timer = clock.call_at(clock.time() + LOOK, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        delivery = self._call.delivery
        try:
            if delivery is not None and await self._is_gone(delivery):
                self._call.cancelled("its caller is gone")
                return
        except RedpollError:
            pass  # where the engine knows the call no more, it ends it
        self._task = None
        self._arm()

    async def _is_gone(self, delivery: Delivery) -> bool:
        try:
            return not (await self._engine.lookup(delivery.id)).watched
        except (Unsupported, UnknownTask):
            # A sign of life has no way to a caller that is gone: the next one is refused.
            return not delivery.progress(_BEAT)
