"""The sending half of calls: messages, retries, replies and statistics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, Literal, TypedDict
from weakref import WeakSet

from redpoll.bus.awaitables import Failed, OutcomeFuture
from redpoll.bus.context import CURRENT, OUTSIDE, check_headers, inherit
from redpoll.bus.engine import Engine, Watcher
from redpoll.bus.envelope import Envelope, OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.records import Receipt
from redpoll.bus.rpc.replies import WINDOW_SIZE, Monitor, PartsWatcher, Reader, Stream
from redpoll.bus.rpc.server import CREDIT, METHOD, MONITOR, NAMESPACE, VERSION, WINDOW
from redpoll.bus.rpc.target import Target, check_version, queue_name, queue_spec, subject_name
from redpoll.bus.tries import Tries
from redpoll.checks import integer, optional, require, seconds
from redpoll.errors import CallTimeout, Closed, ConfigError, Expired, NoRoute, RedpollError, UsageError

__all__ = ["CallOptions", "CallStats", "Caller", "Settings", "Way", "check_times"]

_OK: Final = OutcomeKind.RESULT
#: Ways that are remembered, and statistics; the oldest leaves first.
_WAYS: Final = 10_000
#: Seconds between two tries to send, at first and at most.
_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25
#: Seconds that cancellations, and credit, may take at the end.
_LEAVING: Final = 1.0


def check_times(timeout: float | None, retry: int | None = 0, wait: float = 0.0, monitor: float | None = None) -> None:
    """Validate the options of a call.

    Raises:
        ConfigError: A value cannot be.
    """
    for field, value in (("timeout", timeout), ("wait", wait), ("monitor", monitor)):
        if value is not None and value != 0:
            require(field, value, seconds)
    require("retry", retry, optional(integer(0, 2**31)))
    if monitor is not None and timeout is not None and monitor >= timeout:
        raise ConfigError("monitor", monitor, f"must be below the timeout of {timeout:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a call, or of all calls of a client. Times are seconds.

    Raises:
        ConfigError: A field has a value that it cannot have.
    """

    timeout: float | None
    """Time for all of a call; of a cast, the time after which it is dropped if it was not begun. 0 is one that is over.
    None: no limit."""
    retry: int | None
    """Number of retries of a message that certainly was not taken, or that carries a key by which a second one is
    refused. None: until its time is over."""
    wait: float = 0.0
    """Time to wait for a server to appear."""
    mandatory: bool = True
    """Fail with `NoRoute` where there is no server. False waits for one, until the timeout."""
    monitor: float | None = None
    """Time without a sign of life of the server that has begun a call, after which it fails. None: no limit."""
    headers: Mapping[str, Any] | None = None
    """Headers for the handler, beside those of `use_headers`."""
    version_cap: str | None = None
    """The highest version that may be asked for; None allows all."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_times(self.timeout, self.retry, self.wait, self.monitor)
        check_headers(self.headers)
        if self.version_cap is not None:
            check_version("version_cap", self.version_cap)


class CallOptions(TypedDict, total=False):
    """Fields of `Settings` that a single call can have as keywords; the others are those of its client, or of the bus."""

    timeout: float | None
    retry: int | None
    wait: float
    mandatory: bool
    monitor: float | None
    headers: Mapping[str, Any] | None


class CallStats:
    """The statistics of one method.

    Attributes:
        calls: Calls and streams that were begun.
        ended: Calls that ended, well or not.
        failed: Calls of these that raised.
        casts: Casts, and messages to all servers.
        seconds: The total time of the calls that ended.
    """

    __slots__ = ("calls", "casts", "ended", "failed", "seconds")

    def __init__(self) -> None:
        self.calls = self.ended = self.failed = self.casts = 0
        self.seconds = 0.0

    def __repr__(self) -> str:
        return f"<CallStats {', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)}>"


class Way:
    """The address and the common fields of the messages to one method.

    Args:
        target: The target.
        method: The method; None is a message to a function.
        counted: The statistics.

    Attributes:
        title: The target, for errors.
        name: The target and the method, for errors.
        queue: The queue.
        subject: The subject that all servers take.
        method: The method, "" for a message.
        meta: The fields of each message beside its arguments.
        fanout: True if the target means all servers.
        stats: Its statistics.
    """

    __slots__ = ("fanout", "meta", "method", "name", "queue", "stats", "subject", "title")

    def __init__(self, target: Target, method: str | None, counted: dict[tuple[str, str], CallStats]) -> None:
        self.title = target.title
        self.method = method or ""
        self.name = self.title if method is None else f"{self.title}: {method}"
        self.queue = queue_name(target)
        self.subject = subject_name(target)
        self.fanout = bool(target.fanout)
        asked = {METHOD: method, NAMESPACE: target.namespace, VERSION: target.version}
        self.meta = {key: value for key, value in asked.items() if value is not None}
        key = (self.title, self.method)
        self.stats = counted.get(key) or counted.setdefault(key, CallStats())
        if len(counted) > _WAYS:
            del counted[next(iter(counted))]

    def require_one(self) -> None:
        """Check that there is one reply.

        Raises:
            UsageError: The target is all servers.
        """
        if self.fanout:
            raise UsageError(f"a call has one server, and the target is all servers of {self.title!r}", "use fanout()")


class Caller:
    """Sends the messages that `Rpc` and its clients have validated.

    Args:
        engine: The engine of the queues.
        payloads: The serializers.
        allowed: The exceptions of servers that are rebuilt with their own types.

    Attributes:
        stats: The statistics, by title of the target and name of the method.
    """

    def __init__(self, engine: Engine, payloads: Payloads, allowed: AllowedExceptions) -> None:
        self.stats: dict[tuple[str, str], CallStats] = {}
        self._ways: dict[tuple[Target | str, str | None, str | None], Way] = {}
        self._engine = engine
        self._payloads = payloads
        self._reader = Reader(payloads, allowed)
        self._sending: set[asyncio.Task[None]] = set()
        self._streams: WeakSet[Stream] = WeakSet()

    async def close(self) -> None:
        """End the open streams, and wait until the cancellations were sent; for a second, as the engine may be cut off."""
        for stream in tuple(self._streams):
            stream.lose(Closed("bus"))
        await asyncio.sleep(0)  # leaving begins in another turn
        if self._sending:
            _, left = await asyncio.wait(self._sending, timeout=_LEAVING)
            for each in left:
                each.cancel()

    def way(self, target: Target | str, method: str | None, server: str | None = None) -> Way:
        """Return the way of messages to a method.

        Raises:
            ConfigError: The target has no topic.
        """
        key = (target, server, method)
        way = self._ways.get(key)
        if way is None:
            way = Way(Target.of(target, server), method, self.stats)
            if len(self._ways) >= _WAYS:
                del self._ways[next(iter(self._ways))]
            self._ways[key] = way
        return way

    async def call(self, way: Way, message: Any, its: Settings) -> Any:
        """Call. See `Rpc.call`."""
        began = perf_counter()
        stats = way.stats
        stats.calls += 1
        failed = True
        try:
            headers, timeout, monitor = its.headers, its.timeout, its.monitor
            if CURRENT.get() is not OUTSIDE:
                headers, timeout = inherit(headers, timeout)
            if timeout is not None and timeout <= 0:
                raise _over(way, timeout)
            future = Monitor(self._engine.clock, monitor) if monitor else OutcomeFuture()
            meta = {**way.meta, MONITOR: monitor} if monitor else way.meta
            envelope = self._payloads.pack(message, meta, headers)
            key = None if its.retry == 0 else self._key()
            receipt = self._engine.publish(
                envelope,
                queue=way.queue,
                watcher=future,
                deadline=timeout,
                dedup=key,
                keep=False,
                mandatory=its.mandatory,
                timeout=timeout,
            )
            if type(receipt) is not Receipt:
                since = self._engine.clock.time()
                try:
                    receipt = await receipt
                except RedpollError as error:
                    again = self._again(envelope, way, future, key, its, "deadline")
                    receipt = await self._persist(Failed(error), again, way, its, timeout, key, since)
            try:
                outcome = await future
            except asyncio.CancelledError:
                self._leave(receipt.id)
                raise
            kind, reply, _ = outcome
            if kind is not _OK:
                if monitor and kind is OutcomeKind.EXPIRED:
                    # There was no sign of life; the engine does not know.
                    self._leave(receipt.id)
                raise self._reader.error(outcome, way.name, timeout)
            result = None if reply is None else self._payloads.unpack(reply)
            failed = False
            return result
        finally:
            stats.ended += 1
            stats.failed += failed
            stats.seconds += perf_counter() - began

    async def cast(self, way: Way, message: Any, its: Settings) -> None:
        """Cast; to all servers, where that is the target. See `Rpc.cast`."""
        if way.fanout:
            await self.fanout(way, message, its)
            return
        way.stats.casts += 1
        timeout = its.timeout
        if timeout is not None and timeout <= 0:
            raise Expired(None, timeout, f"sending to {way.name}")
        # The deadline of a handler does not bound its casts.
        envelope = self._payloads.pack(message, way.meta, inherit(its.headers, None)[0])
        key = None if its.retry == 0 else self._key()
        again = self._again(envelope, way, None, key, its, "ttl")
        receipt = again(timeout)
        if type(receipt) is not Receipt:
            await self._persist(receipt, again, way, its, timeout, key)

    async def fanout(self, way: Way, message: Any, its: Settings) -> None:
        """Tell all servers. See `Rpc.fanout`."""
        way.stats.casts += 1
        envelope = self._payloads.pack(message, way.meta, inherit(its.headers, None)[0])
        await self._engine.publish(envelope, subject=way.subject, timeout=its.timeout)

    def stream(self, way: Way, message: Any, its: Settings) -> Stream:
        """Begin to stream. See `Rpc.stream`."""
        engine, payloads = self._engine, self._payloads
        loop = asyncio.get_running_loop()
        once = replace(its, retry=0, mandatory=True)

        async def begin(watcher: PartsWatcher) -> str:
            engine.capabilities.require("progress", "streamed answers", "ask for pages by several calls")
            way.stats.calls += 1
            sent, limit = inherit(its.headers, its.timeout)
            if limit is not None and limit <= 0:
                raise _over(way, limit)
            envelope = payloads.pack(message, {**way.meta, WINDOW: WINDOW_SIZE}, sent)
            again = self._again(envelope, way, watcher, None, once, "deadline")
            return (await self._persist(again(limit), again, way, once, limit)).id

        async def credit(task: str, parts: int) -> None:
            with suppress(RedpollError):  # it has ended
                await engine.tell(task, Envelope("raw", b"", {CREDIT: parts}))

        def again(task: str, parts: int) -> asyncio.Task[None]:
            return self._in_background(credit(task, parts))

        def leave(task: str) -> None:
            with suppress(RuntimeError):  # the loop is closed; it may be another thread that drops the last reference
                loop.call_soon_threadsafe(self._leave, task)

        stream = Stream(begin, credit, again, leave, PartsWatcher(self._reader, way.name), payloads, engine.clock)
        self._streams.add(stream)
        return stream

    def _again(
        self,
        envelope: Envelope,
        way: Way,
        watcher: Watcher | None,
        key: str | None,
        its: Settings,
        expires: Literal["deadline", "ttl"],
    ) -> Callable[[float | None], Awaitable[Receipt]]:
        """Return a function that publishes a message, given the seconds that are left to it."""
        options: dict[str, Any] = {"queue": way.queue, "dedup": key, "keep": False, "mandatory": its.mandatory}

        def publish(left: float | None) -> Awaitable[Receipt]:
            return self._engine.publish(envelope, watcher=watcher, timeout=left, **{**options, expires: left})

        return publish

    async def _persist(
        self,
        sent: Awaitable[Receipt],
        again: Callable[[float | None], Awaitable[Receipt]],
        way: Way,
        its: Settings,
        timeout: float | None,
        key: str | None = None,
        since: float | None = None,
    ) -> Receipt:
        """Send until it is taken, as often and as long as that may take; since it was sent first, if that was before."""
        clock = self._engine.clock
        tries = Tries(clock, timeout, its.retry, f"sending to {way.name}", _PAUSE, _LONGEST_PAUSE, key is not None)
        if since is not None:
            tries.began = since
        declared = False
        while True:
            try:
                return await sent
            except NoRoute as error:
                if not its.mandatory:
                    await self._engine.declare(queue_spec(way.queue))
                elif clock.time() - tries.began >= its.wait:
                    raise NoRoute(way.title, "start a server, or pass wait=") from error
            except RedpollError as error:
                if not tries.covers(error):
                    raise
            if its.mandatory or declared:
                await tries.pause()
            else:
                # It may have failed only because the queue was not there.
                declared = True
                tries.skip()
            sent = again(tries.left())

    def _key(self) -> str | None:
        """Return a key that makes a second message harmless, where the engine has such."""
        return os.urandom(16).hex() if self._engine.capabilities.dedup else None

    def _leave(self, task: str) -> None:
        """Cancel a call that has no caller any more."""
        self._in_background(self._cancel(task))

    def _in_background(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Send without waiting; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def _cancel(self, task: str) -> None:
        with suppress(RedpollError):  # it has ended, or the bus has
            await self._engine.cancel(task)


def _over(way: Way, timeout: float) -> CallTimeout:
    return CallTimeout(way.name, timeout, "the timeout ended before it was sent")
