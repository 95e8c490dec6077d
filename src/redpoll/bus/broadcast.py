"""Broadcasts: from one sender to all subscribers: ``bus.broadcast``.

A broadcast is an event of the engine, on a subject that begins with the word ``broadcast``, so that no other pattern meets
it. Best effort: it reaches the present subscribers; `last` keeps some for later ones, and a `durable` subscription is a
queue, which is filled without a listener too, and delivers each broadcast until it was handled.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from redpoll.bus.awaitables import close_all, is_cancelled, unexpected, with_owner
from redpoll.bus.context import CURRENT, Context, check_headers
from redpoll.bus.engine import Delivery, Engine, Subscription
from redpoll.bus.envelope import Payloads, check_carried, printable
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.records import MAX_SUBJECT, Event, QueueSpec, check_last, check_subject, words_match
from redpoll.checks import call_problem, check_function, duration, is_async, optional, require
from redpoll.errors import BadPayload, ConfigError, RedpollError, UsageError
from redpoll.node.reports import Repeated

__all__ = ["Broadcast", "BroadcastSubscription", "Broadcasts", "Callback"]

_log = logging.getLogger("redpoll.bus")

#: The first word of the subjects of the engine, and what stands before the names of queues.
_WORD: Final = "broadcast"
#: Deliveries of a durable subscription that wait for its callback.
_CREDIT: Final = 16
_LONGEST: Final = 60.0
#: Maximum bytes of a subject, without the first word and its dot.
_MAX_SUBJECT: Final = MAX_SUBJECT - len(_WORD) - 1
#: Text that needs no closer look: words of letters, digits and the like.
_USUAL: Final = re.compile(rf"[\w.:/-]{{1,{_MAX_SUBJECT}}}", re.ASCII).fullmatch
_PLAIN: Final = frozenset({str, int, float, bytes, bool})
_NOTHING: Final[Mapping[str, Any]] = {}
_NO_HEADERS: Final = Context()


class Broadcast(NamedTuple):
    """A broadcast as it is received. All subscribers of one bus see the same body: do not change it.

    Attributes:
        body: The body.
        sender: The sender, as it named itself, or None.
        subject: The subject, or None.
        correlation_id: The sender's correlation id, or None.
        headers: The sender's context, or None.
        kept: True if it was sent before the subscription began.
    """

    body: Any
    sender: Any = None
    subject: str | None = None
    correlation_id: Any = None
    headers: Mapping[str, Any] | None = None
    kept: bool = False


Callback = Callable[[Broadcast], object]
"""A callback for broadcasts: a plain function, on the loop, which does not block; or a coroutine function."""


class _Reader:
    """Makes broadcasts of events and deliveries; of an event once for all its subscribers.

    Args:
        payloads: The serializers.

    Attributes:
        event: The event that was read last, until the next one comes.
        seen: The broadcast of that.
    """

    def __init__(self, payloads: Payloads) -> None:
        self.event: Event | None = None
        self.seen = Broadcast(None)
        self._payloads = payloads

    def read(self, item: Event | Delivery) -> Broadcast:
        """Read a broadcast.

        Raises:
            BadPayload: The body cannot be read here.
        """
        if item is self.event:
            return self.seen
        envelope = item.envelope
        meta = envelope.meta or _NOTHING
        event = item if isinstance(item, Event) else None
        broadcast = Broadcast(
            self._payloads.unpack(envelope),
            meta.get("sender"),
            meta.get("subject"),
            meta.get("correlation_id"),
            envelope.headers,
            event is not None and event.kept,
        )
        if event is not None:
            self.event, self.seen = event, broadcast
        return broadcast


class BroadcastSubscription:
    """Receives broadcasts while it is open: by its callback, or by iterating. Made by `Broadcasts.subscribe`.

    Use it as an async context manager, or call `start` and `close`. A plain function is called as the broadcasts come, a
    coroutine function with one after the other. Of those that wait for a coroutine function or an iteration, the oldest
    are dropped beyond the buffer; of a durable subscription none.

    Iterating a durable subscription, a broadcast is done when the next one is asked for; the last one goes back if the
    subscription is closed before.

    Attributes:
        callback: The callback; None iterates.
        delivered: Broadcasts that were handed over, those with a callback that failed included.
        failed: Broadcasts that could not be read, or whose callback raised.
    """

    def __init__(
        self,
        engine: Engine,
        reader: _Reader,
        others: set[BroadcastSubscription],
        callback: Callback | None,
        patterns: tuple[str, ...],
        wants: Callable[[Broadcast], bool] | None,
        spec: QueueSpec | None,
        last: bool,
        buffer: int,
    ) -> None:
        self.delivered = 0
        self.failed = 0
        self._engine = engine
        self._reader = reader
        self._others = others
        self.callback = callback
        self._patterns = patterns
        self._wants = wants
        self._spec = spec
        self._last = last
        self._buffer = buffer
        self._source: Subscription | LastingConsumer | None = None
        self._runner: asyncio.Task[None] | None = None
        self._delivery: Delivery | None = None
        self._variables: Variables = copy_context()
        self._failures = Repeated(_log_failed)

    def __repr__(self) -> str:
        name = "" if self._spec is None else f" {self._spec.name!r}"
        return f"<BroadcastSubscription{name} {'active' if self.active else 'not active'}>"

    @property
    def active(self) -> bool:
        """True if it receives broadcasts."""
        return self in self._others and bool(getattr(self._source, "active", True))

    @property
    def dropped(self) -> int:
        """Broadcasts that were lost here because they were taken too slowly."""
        return int(getattr(self._source, "dropped", 0))

    async def start(self) -> Self:
        """Begin to receive broadcasts: all that are sent after this returned.

        Raises:
            UsageError: It was started before.
            NotAuthorized: One of the subjects may not be subscribed to.
            SpecConflict: A durable subscription of that name has other subjects or settings.
            Closed: The bus is not open.
        """
        if self._source is not None:
            raise UsageError("this subscription was started before", "subscribe again for another one")
        engine = self._engine
        runs = self.callback is not None
        # Not the context of the sender: that may be the handler of a call, with headers and a deadline of its own.
        self._variables = copy_context()
        if self._spec is not None:
            # One that is deleted while it is open is made again, as it would be by opening it.
            self._source = await LastingConsumer.declared(engine, self._spec, credit=_CREDIT)
        elif self.callback is not None and not is_async(self.callback):
            runs = False
            self._source = await engine.subscribe(self._patterns, sink=self._take, last=self._last)
        else:
            self._source = await engine.subscribe(self._patterns, last=self._last, buffer=self._buffer)
        self._others.add(self)
        if runs:
            runner = asyncio.get_running_loop().create_task(self._run(self._source), context=self._variables)
            self._runner = with_owner(runner)
        return self

    async def close(self, drain: float | None = 0.0) -> None:
        """Receive no more.

        Args:
            drain: Seconds to wait for a coroutine function that works on a broadcast; it is cancelled then. None is no
                limit.

        What a durable subscription has not done goes back to its queue.
        """
        self._failures.close()
        self._others.discard(self)
        runner = None if self._runner is asyncio.current_task() else self._runner
        timer = None
        try:
            if self._source is not None:
                await self._source.close()
            if runner is None:
                return
            if drain is not None and drain > 0:
                clock = self._engine.clock
                timer = clock.call_at(clock.time() + drain, runner.cancel)
            if drain != 0:
                await asyncio.wait([runner])
        finally:
            self._end_open(done=False)
            if runner is not None:
                runner.cancel()
            if timer is not None:
                timer.cancel()
        await asyncio.wait([runner])

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; a coroutine function that works on a broadcast is cancelled."""
        await self.close()

    # -- iterating

    def __aiter__(self) -> Self:
        """Return itself; there is one iteration."""
        return self

    async def __anext__(self) -> Broadcast:
        """Wait for the next broadcast.

        Raises:
            UsageError: It was not started, or has a callback.

        Cancelling it loses nothing.
        """
        if self._source is None or self.callback is not None:
            raise UsageError("this subscription cannot be iterated", "start it, without a callback")
        self._end_open(done=True)
        while True:
            item: Event | Delivery = await self._source.__anext__()
            try:
                broadcast = self._read(item)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # a predicate may raise anything
                self._fail(item, error)
                continue
            delivery = None if isinstance(item, Event) else item
            if broadcast is not None:
                self._delivery = delivery
                return broadcast
            if delivery is not None:
                delivery.ack()

    def _end_open(self, *, done: bool) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            (delivery.ack if done else delivery.reject)()

    # -- with a callback

    def _take(self, event: Event) -> None:
        """Call the plain function with an event."""
        reader = self._reader
        try:
            broadcast = reader.seen if reader.event is event else reader.read(event)
            if self._wants is None or self._wants(broadcast):
                self.delivered += 1
                self._variables.run(self._call, broadcast)
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:  # noqa: BLE001  # a callback may raise anything
            self._fail(event, error)

    def _call(self, broadcast: Broadcast) -> None:
        CURRENT.set(Context(broadcast.headers) if broadcast.headers else _NO_HEADERS)
        result = self.callback(broadcast)  # type: ignore[misc]
        if result is not None and inspect.iscoroutine(result):
            result.close()
            raise TypeError("the callback is a plain function and returned a coroutine, which was not awaited")

    async def _run(self, source: Subscription | LastingConsumer) -> None:
        try:
            async for item in source:
                await self._handle(item)
                if self not in self._others:
                    return  # closed meanwhile
        except RedpollError as error:
            _log.warning("%r ended: %s", self, error)

    async def _handle(self, item: Event | Delivery) -> None:
        try:
            broadcast = self._read(item)
            if broadcast is not None:
                CURRENT.set(Context(broadcast.headers) if broadcast.headers else _NO_HEADERS)
                result = self.callback(broadcast)  # type: ignore[misc]
                if inspect.isawaitable(result):
                    await result
        except GeneratorExit as error:
            self._fail(item, unexpected(error, self._runner))
        except (Exception, asyncio.CancelledError) as error:  # a callback may raise anything
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                if not isinstance(item, Event):
                    item.reject()
                raise
            self._fail(item, error)
        else:
            if not isinstance(item, Event):
                item.ack()

    def _read(self, item: Event | Delivery) -> Broadcast | None:
        """Read and count a broadcast; None if it is not wanted."""
        broadcast = self._reader.read(item)
        if self._wants is not None and not self._wants(broadcast):
            return None
        self.delivered += 1
        return broadcast

    def _fail(self, item: Event | Delivery, error: BaseException) -> None:
        """Count what could not be taken; a durable subscription has it again, later each time, or as a dead letter."""
        self.failed += 1
        self._failures.note((self, error))
        if isinstance(item, Event):
            return
        if isinstance(error, BadPayload):
            item.reject(requeue=False, reason=str(error))
        else:
            delay = min(_LONGEST, 2.0 ** min(item.attempt - 1, 10))
            item.reject(delay=delay, blame=True, reason=f"{type(error).__name__}: {printable(error)}")


def _log_failed(count: int, last: tuple[BroadcastSubscription, BaseException]) -> None:
    subscription, error = last
    what = "a broadcast" if count == 1 else f"{count:,} broadcasts, the last one"
    _log.error("%r could not take %s", subscription, what, exc_info=error)


class Broadcasts:
    """Sends broadcasts, and lets them be received: ``bus.broadcast``.

    Args:
        engine: The engine.
        payloads: The serializers.

    Attributes:
        sent: Broadcasts that were handed to the engine.
    """

    def __init__(self, engine: Engine, payloads: Payloads) -> None:
        self.sent = 0
        self._engine = engine
        self._payloads = payloads
        self._reader = _Reader(payloads)
        self._open: set[BroadcastSubscription] = set()

    def send(
        self,
        body: Any,
        *,
        subject: str | None = None,
        sender: Any = None,
        correlation_id: Any = None,
        headers: Mapping[str, Any] | None = None,
        last: int = 0,
        timeout: float | None = None,
    ) -> Awaitable[object]:
        """Send a broadcast; having no subscribers is no error.

        Args:
            body: A value that the serializer of the bus carries.
            subject: The subject: words separated by dots, without wildcards; None is none.
            sender: The sender, as MessagePack carries it.
            correlation_id: The correlation id, as MessagePack carries it.
            headers: A context, as MessagePack carries it.
            last: Keep the last so many of this subject for later subscribers (`Capabilities.last`); 0 keeps none more.
            timeout: Seconds to wait for room in a durable subscription that lets wait. None: no limit, beside that of an
                engine that is away (30 s for `redpoll://`).

        Returns:
            An awaitable, done when it is on its way to the live subscriptions, and each durable one has it as surely as
            `Capabilities.confirm` says. Many may be open.

        Raises:
            EncodeError: The serializer cannot carry the body.
            PayloadTooLarge: The body is over `Capabilities.max_body`.
            ConfigError: It is no subject, or a value cannot be; some of it when awaited, as those below.
            QueueFull: A durable subscription has no room and refuses, or the disk of the hub is full and it would be stored
                there; it was sent to none.
            Expired: A durable subscription had no room in time; it was sent to none.
            NotAuthorized: It is not allowed.
        """
        if last or timeout is not None:
            check_last(last)
            require("timeout", timeout, optional(duration))
        meta: dict[str, Any] = {}
        if subject is not None:
            if type(subject) is not str or not _USUAL(subject):
                _check_subject(subject)  # the engine would show it with the first word
            meta["subject"] = subject
        for field, value in (("sender", sender), ("correlation_id", correlation_id)):
            if value is not None:
                if type(value) not in _PLAIN:
                    check_carried(field, value)
                meta[field] = value
        check_headers(headers)
        done = self._engine.publish(
            self._payloads.pack(body, meta or None, headers),
            subject=_WORD if subject is None else f"{_WORD}.{subject}",
            last=last,
            timeout=timeout,
        )
        self.sent += 1
        return done

    def subscribe(
        self,
        callback: Callback | None = None,
        *,
        subject: str | Sequence[str] | re.Pattern[str] | None = None,
        sender: Any = None,
        where: Callable[[Broadcast], bool] | None = None,
        last: bool = False,
        durable: str | QueueSpec | None = None,
        buffer: int = 1_000,
    ) -> BroadcastSubscription:
        """Make a subscription: ``async with bus.broadcast.subscribe(callback, subject="state.*.finished"): ...``.

        The engine sends what `subject` matches as words; the rest is looked at here, in this order, and all of it has to
        match. A broadcast that has no subject or no sender matches no filter for it, but ``#``.

        Args:
            callback: A plain function, which is called on the loop and does not block, or a coroutine function. Without it,
                iterate. Its exceptions are logged and counted.
            subject: One or several patterns, where ``*`` stands for one word and ``#`` for any number of them; or a
                compiled regular expression, which has to match from the start. None is all.
            sender: Text, with wildcards if it is to be a pattern; a compiled regular expression, as above; any other value
                has to be equal. None is all.
            where: A function that returns True for the broadcasts that are wanted.
            last: Take those first that were kept for these subjects.
            durable: Name of a durable subscription, or a spec with that name and its limits. Broadcasts that it missed
                wait for its return; several subscriptions of one name share it. A callback that raises is called again after
                1 to 60 s, up to `QueueSpec.max_attempts` times. By default the oldest are dropped at 1 GiB.
            buffer: Maximum broadcasts that wait for the callback or the iteration.

        Raises:
            ConfigError: A pattern cannot be one, or the callback is no function.
            UsageError: Both `last` and `durable`.
        """
        if callback is not None:
            check_function(
                "callback",
                callback,
                "a callback is a plain function or a coroutine function of one argument, the broadcast",
            )
            problem = call_problem(callback)
            if problem is not None:
                raise ConfigError("callback", callback, f"cannot be called with a broadcast: {problem}")
        if last and durable is not None:
            raise UsageError("a durable subscription has no last broadcasts", "subscribe a second time for these")
        checks: list[Callable[[Broadcast], bool]] = []
        patterns: tuple[str, ...] = (f"{_WORD}.#",)
        if isinstance(subject, re.Pattern):
            checks.append(_matches("subject", subject.match))
        elif subject is not None:
            given = (subject,) if isinstance(subject, str) or not isinstance(subject, Sequence) else tuple(subject)
            for pattern in given:
                _check_subject(pattern, pattern=True)
            patterns = tuple(f"{_WORD}.{pattern}" for pattern in given)
        if isinstance(sender, str) and not {"*", "#"}.isdisjoint(sender.split(".")):
            checks.append(_matches("sender", words_match(sender)))
        elif isinstance(sender, re.Pattern):
            checks.append(_matches("sender", sender.match))
        elif sender is not None:
            checks.append(lambda broadcast: bool(broadcast.sender == sender))
        if where is not None:
            check_function("where", where, "it is a function of one argument, the broadcast")
            checks.append(where)
        spec = None
        if durable is not None:
            spec = durable if isinstance(durable, QueueSpec) else QueueSpec(durable, at_limit="drop-old")
            spec = replace(spec, name=f"{_WORD}:{spec.name}", kind="events", topics=patterns)
        wants = checks[0] if len(checks) == 1 else _all_of(checks) if checks else None
        return BroadcastSubscription(
            self._engine, self._reader, self._open, callback, patterns, wants, spec, last, buffer
        )

    async def forget(self, durable: str) -> None:
        """Delete a durable subscription and its pending broadcasts. One that is open continues, empty: close it first.

        Raises:
            NoRoute: There is none of that name.
        """
        await self._engine.delete(f"{_WORD}:{durable}")

    @property
    def in_place(self) -> bool:
        """True if all subscriptions are active."""
        return all(each.active for each in self._open)

    async def close(self, drain: float | None = 0.0) -> None:
        """Close all subscriptions; the bus does so before it closes. See `BroadcastSubscription.close`."""
        await close_all(each.close(drain) for each in tuple(self._open))


def _matches(field: str, match: Callable[[str], object]) -> Callable[[Broadcast], bool]:
    def matches(broadcast: Broadcast) -> bool:
        value = getattr(broadcast, field)
        return isinstance(value, str) and bool(match(value))

    return matches


def _all_of(checks: Sequence[Callable[[Broadcast], bool]]) -> Callable[[Broadcast], bool]:
    return lambda broadcast: all(check(broadcast) for check in checks)


def _check_subject(subject: object, *, pattern: bool = False) -> None:
    """Check a subject, or a pattern of them, as the user gave it.

    Raises:
        ConfigError: It cannot be one.
    """
    check_subject("subject", subject, pattern=pattern)
    if len(str(subject).encode()) > _MAX_SUBJECT:
        raise ConfigError("subject", subject, f"must have at most {_MAX_SUBJECT} bytes")
