"""A driver of oslo.messaging: transports with URLs like ``redpoll://host:port``, and ``redpoll+amqp://…`` for other engines.

oslo.messaging finds it by the entry point group ``oslo.messaging.drivers``. Calls and notifications are those of the bus:
programs with oslo.messaging and programs with redpoll serve each other. A topic of an exchange is
``Target(topic, exchange=exchange)`` there, and a topic of notifications is ``"exchange/topic"``.

**Calls** are done at most once. A server is handed as many at a time as its executor has threads; the rest waits in the
queue. One whose caller has given up is not begun. Where a server is lost, its callers hear `MessagingTimeout` at once.

**Notifications** are durable, and acknowledged when they were handled.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import oslo_messaging
from oslo_messaging._drivers import base, common
from oslo_serialization import jsonutils

from redpoll.bus.bus import Bus
from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions, Failure, pack_failure
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.notifications import Notification, NotificationOptions
from redpoll.bus.notifications.notifier import Outlet
from redpoll.bus.notifications.records import pack, unpack
from redpoll.bus.notifications.records import queue_spec as notification_queue
from redpoll.bus.process_bus import ProcessBus
from redpoll.bus.rpc.caller import Caller, Settings
from redpoll.bus.rpc.server import METHOD, MONITOR, NAMESPACE, VERSION
from redpoll.bus.rpc.target import Target, queue_name, queue_spec, subject_name
from redpoll.bus.service import Source
from redpoll.errors import (
    BadPayload,
    CallTimeout,
    DecodeError,
    EncodeError,
    NoRoute,
    PeerLost,
    RedpollError,
    TaskCancelled,
)
from redpoll.serializers.base import Buffer

__all__ = ["Incoming", "JsonPrimitives", "PollingListener", "RedpollDriver", "RpcIncoming"]

_log = logging.getLogger("redpoll.compat.oslo")

#: Calls that a server is handed at a time for each of its queues, where no pool of threads says otherwise.
_CREDIT: Final = 64
#: Messages to all servers that wait in one of them; those that come then are dropped.
_EVENTS: Final = 1_000
#: Seconds for each try to send, where the number of tries is limited.
_TRY: Final = 5.0
_BEAT: Final = Envelope("raw", b"")
#: Characters that names of exchanges, topics and servers keep; the rest is written as in URLs.
_PLAIN: Final = "@!$&'()+,;=? "


class JsonPrimitives:
    """JSON as oslo.messaging writes it: dates, UUIDs and objects with attributes become plain values."""

    name = "json"
    wants_buffer = False

    def encode(self, obj: Any, /) -> bytes:
        """Encode a value.

        Raises:
            EncodeError: It has no JSON.
        """
        try:
            return bytes(jsonutils.dump_as_bytes(obj))
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(self.name, str(error)) from error

    def decode(self, data: Buffer, /) -> Any:
        """Decode JSON.

        Raises:
            DecodeError: It is none.
        """
        try:
            return jsonutils.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DecodeError(self.name, str(error)) from error


def _name(text: str) -> str:
    """Return a name as the bus can have it; most are as they are."""
    shown = quote(text, safe=_PLAIN).replace(".@", ".%40")
    return f"%40{shown[1:]}" if shown.startswith("@") else shown


def _target(target: Any, exchange: str | None) -> Target:
    scope = target.exchange or exchange
    return Target(
        _name(target.topic),
        server=_name(target.server) if target.server else None,
        exchange=_name(scope) if scope else None,
        fanout=bool(target.fanout),
    )


def _topic(target: Any, exchange: str | None) -> str:
    scope = target.exchange or exchange
    return f"{_name(scope)}/{_name(target.topic)}" if scope else _name(target.topic)


class _Exceptions(AllowedExceptions):
    """Exceptions of servers, rebuilt as oslo.messaging does it.

    Args:
        modules: The modules whose exceptions are rebuilt, beside Python's own.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        super().__init__()
        self._allowed = list(modules)

    def rebuild(self, envelope: Envelope) -> Exception:
        """Make the exception of an envelope."""
        failure = Failure.read(envelope)
        fields = {
            "class": failure.kind,
            "module": failure.module,
            "message": failure.text,
            "tb": (failure.traceback or "").splitlines(keepends=True),
            "args": [failure.text] if failure.args is None else failure.args,
            "kwargs": (envelope.meta or {}).get("kwargs", {}),
        }
        rebuilt: Exception = common.deserialize_remote_exception(jsonutils.dumps(fields), self._allowed)
        return rebuilt


def _pack_failure(failure: Any) -> Envelope:
    """Put what `sys.exc_info` says into an envelope; an exception that came from elsewhere keeps its type."""
    fields = jsonutils.loads(common.serialize_remote_exception(failure))
    packed = Failure(
        fields["module"], fields["class"], fields["message"], list(fields["args"]), "".join(fields["tb"])
    ).pack()
    return packed._replace(meta={"kwargs": fields["kwargs"]}) if fields["kwargs"] else packed


class _Side:
    """The half of the driver on the event loop.

    Args:
        bus: The bus.
        modules: The modules whose exceptions are rebuilt.
    """

    def __init__(self, bus: Bus, modules: Iterable[str]) -> None:
        self.engine = bus.engine
        self.payloads = bus.payloads
        self._caller = Caller(bus.engine, bus.payloads, _Exceptions(modules))
        self._outlet = Outlet(bus.engine, bus.payloads, NotificationOptions(timeout=None))

    async def send(
        self,
        target: Target,
        asked: Target,
        message: Mapping[str, Any],
        its: Settings,
        patience: float | None,
        waits: bool,
    ) -> Any:
        """Call or cast.

        Args:
            target: The target.
            asked: The namespace and the version.
            message: The message of oslo.messaging.
            its: The settings.
            patience: Seconds until a cast is taken; None is no limit.
            waits: Call.
        """
        way = self._caller.way(target(namespace=asked.namespace, version=asked.version), message.get("method"))
        args = message.get("args", {})
        if waits:
            return await self._caller.call(way, args, its)
        async with asyncio.timeout(patience):
            return await self._caller.cast(way, args, its)

    async def notify(self, topic: str, notification: Notification, retry: int | None, patience: float | None) -> None:
        """Send a notification."""
        async with asyncio.timeout(patience):
            await self._outlet.send([topic], notification.priority, pack(self.payloads, notification, False), retry)

    async def serve(self, target: Target, credit: int, sink: Callable[[Delivery | Envelope], object]) -> list[Source]:
        """Take the calls of a server, and what is sent to all servers of its topic."""
        sources: list[Source] = []
        try:
            for each in {queue_name(target(server=None)), queue_name(target)}:
                spec = queue_spec(each)
                sources.append(await LastingConsumer.declared(self.engine, spec, credit=credit, sink=sink, accept=True))
            sources.append(await self.engine.subscribe([subject_name(target)], sink=lambda event: sink(event.envelope)))
        except BaseException:
            await self.close(sources)
            raise
        return sources

    async def listen(
        self, topics: Iterable[tuple[str, str]], pool: str | None, credit: int, sink: Callable[[Delivery], object]
    ) -> list[Source]:
        """Take the notifications of topics and priorities."""
        sources: list[Source] = []
        try:
            for topic, priority in topics:
                spec = notification_queue(self._outlet.options, topic, priority, pool)
                sources.append(await LastingConsumer.declared(self.engine, spec, credit=credit, sink=sink))
        except BaseException:
            await self.close(sources)
            raise
        return sources

    async def close(self, sources: Iterable[Source]) -> None:
        """Close sources, whatever becomes of each."""
        for source in sources:
            with suppress(RedpollError):
                await source.close()


class Incoming(base.IncomingMessage):  # type: ignore[misc]  # it has no types
    """A notification, as a listener is handed it."""

    def __init__(
        self, bus: ProcessBus[_Side], delivery: Delivery, ctxt: dict[str, Any], message: dict[str, Any]
    ) -> None:
        super().__init__(ctxt, message)
        self._bus = bus
        self._delivery = delivery

    def acknowledge(self) -> None:
        """End it: it is not delivered again, once the engine has noted that."""
        self._bus.post(self._delivery.ack)

    def requeue(self) -> None:
        """Give it back, to any listener of its pool."""
        self._bus.post(self._delivery.reject)


class RpcIncoming(base.RpcIncomingMessage):  # type: ignore[misc]  # it has no types
    """A call, a cast, or a message to all servers, as a server is handed it."""

    def __init__(
        self,
        bus: ProcessBus[_Side],
        payloads: Payloads,
        delivery: Delivery | None,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        monitor: float | None,
    ) -> None:
        super().__init__(ctxt, message)
        self.client_timeout = monitor
        self._bus = bus
        self._payloads = payloads
        self._delivery = delivery

    def acknowledge(self) -> None:
        """Do nothing: the engine noted that it is begun when it was handed out."""

    def requeue(self) -> None:
        """Do nothing: a call is done at most once."""

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer, or end what has no answer.

        Args:
            reply: The result.
            failure: The triple of `sys.exc_info`, in place of a result.
        """
        if self._delivery is None:
            return
        try:
            if failure is None:
                outcome = Outcome(OutcomeKind.RESULT, self._payloads.pack(reply))
            else:
                outcome = Outcome(OutcomeKind.ERROR, _pack_failure(failure))
        except Exception as error:  # noqa: BLE001  # whatever a result or an exception raises as it is written
            outcome = Outcome(OutcomeKind.ERROR, pack_failure(error))
        self._bus.post(_end, self._delivery, outcome)

    def heartbeat(self) -> None:
        """Tell the caller that it is worked on."""
        if self._delivery is not None:
            self._bus.post(self._delivery.progress, _BEAT)


def _end(delivery: Delivery, outcome: Outcome) -> None:
    try:
        delivery.ack(outcome)
    except RedpollError as error:
        delivery.ack(Outcome(OutcomeKind.ERROR, pack_failure(error)))


class PollingListener(base.PollStyleListener):  # type: ignore[misc]  # it has no types
    """Messages that were handed out, for the thread that polls.

    Args:
        bus: The bus.
        read: Makes a message of oslo.messaging; None where there is none to handle.
        prefetch: The most messages of a batch.
    """

    def __init__(self, bus: ProcessBus[_Side], read: Callable[[Any], Any], prefetch: int) -> None:
        super().__init__(prefetch)
        self._bus = bus
        self._read = read
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sources: list[Source] = []
        self._stopped = False

    def open(self, open_: Callable[..., Any], *args: Any) -> None:
        """Begin to take messages."""
        self._sources = self._bus.run(open_, *args, self._take)

    def _take(self, item: Delivery | Envelope) -> None:
        if isinstance(item, Envelope) and self._waiting.qsize() >= _EVENTS:
            _log.warning("a message to all servers is dropped: %d wait", _EVENTS)
        else:
            self._waiting.put(item)

    @base.batch_poll_helper  # type: ignore[untyped-decorator]
    def poll(self, timeout: float | None = None) -> Any:
        """Return the next message; None where none came in time, and once it is stopped and empty."""
        while True:
            try:
                item = self._waiting.get(not self._stopped, timeout)
            except queue.Empty:
                return None
            message = None if item is None else self._read(item)
            if message is not None or item is None:
                return message

    def stop(self) -> None:
        """Take no more; what was handed out can still be polled."""
        self.cleanup()
        self._stopped = True
        self._waiting.put(None)

    def cleanup(self) -> None:
        """Take no more."""
        sources, self._sources = self._sources, []
        if sources and self._bus.entered:
            with suppress(RedpollError):
                self._bus.run(_Side.close, sources)


class RedpollDriver(base.BaseDriver):  # type: ignore[misc]  # it has no types
    """The driver of ``redpoll://`` and ``redpoll+…://``; oslo.messaging makes it.

    It connects with the first message or listener, and continues while the engine is away. Each process connects anew after a
    fork.
    """

    def __init__(
        self, conf: Any, url: Any, default_exchange: str | None = None, allowed_remote_exmods: list[str] | None = None
    ) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        side = partial(_Side, modules=self._allowed_remote_exmods)
        self._bus: ProcessBus[_Side] = ProcessBus(str(url), side, wait=True, serializer=JsonPrimitives())

    def require_features(self, requeue: bool = False) -> None:
        """Accept all: notifications can be given back."""

    def send(
        self,
        target: Any,
        ctxt: Any,
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Call or cast; see oslo.messaging's `BaseDriver.send`.

        Without a server it waits for one, a call until its timeout. With ``at_least_once=True`` it fails at once.

        Raises:
            MessagingTimeout: No answer came in time, or its server was lost.
            MessageUndeliverable: There is no server, with ``at_least_once=True``.
            MessageDeliveryFailure: It was not taken.
        """
        tries = None if retry is None or retry < 0 else retry
        where = _target(target, self._default_exchange)
        settings = Settings(
            timeout=timeout if wait_for_reply else None,
            retry=tries,
            mandatory=bool(getattr(transport_options, "at_least_once", False)),
            monitor=call_monitor_timeout if timeout is None or (call_monitor_timeout or 0) < timeout else None,
            headers=jsonutils.to_primitive(ctxt) or None,
        )
        asked = Target(namespace=message.get("namespace"), version=message.get("version"))
        return self._sent(target, _Side.send, where, asked, message, settings, _patience(tries), bool(wait_for_reply))

    def send_notification(
        self,
        target: Any,
        ctxt: Any,
        message: dict[str, Any],
        version: float,  # noqa: ARG002  # there is one format
        retry: int | None = None,
    ) -> None:
        """Send a notification; see oslo.messaging's `BaseDriver.send_notification`.

        Raises:
            MessageDeliveryFailure: It was not taken.
        """
        tries = None if retry is None or retry < 0 else retry
        topic, _, priority = _topic(target, self._default_exchange).rpartition(".")
        notification = Notification(
            event=message.get("event_type") or "",
            payload=message.get("payload"),
            publisher=message.get("publisher_id") or "",
            priority=priority,  # type: ignore[arg-type]  # it is one of them
            id=message["message_id"],
            timestamp=_seconds(message.get("timestamp")),
            headers=jsonutils.to_primitive(ctxt) or {},
        )
        self._sent(target, _Side.notify, topic, notification, tries, _patience(tries))

    def _sent(self, target: Any, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._bus.run(method, *args)
        except NoRoute as error:
            raise oslo_messaging.MessageUndeliverable(error, target.exchange, target.topic, None) from error
        except (CallTimeout, PeerLost, TaskCancelled) as error:
            raise oslo_messaging.MessagingTimeout(str(error)) from error
        except (RedpollError, TimeoutError) as error:
            if isinstance(error, RedpollError) or type(error) is TimeoutError:
                raise oslo_messaging.MessageDeliveryFailure(str(error) or "it was not taken in time") from error
            raise

    def listen(self, target: Any, batch_size: int, batch_timeout: float) -> Any:
        """Take the calls of a server; see oslo.messaging's `BaseDriver.listen`."""
        payloads = self._bus.enter()[1].payloads
        credit = getattr(self.conf, "executor_thread_pool_size", None) or _CREDIT
        listener = PollingListener(self._bus, partial(_read_call, self._bus, payloads), -1)
        listener.open(_Side.serve, _target(target, self._default_exchange), credit)
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def listen_for_notifications(
        self, targets_and_priorities: Iterable[tuple[Any, str]], pool: str | None, batch_size: int, batch_timeout: float
    ) -> Any:
        """Take notifications; see oslo.messaging's `BaseDriver.listen_for_notifications`."""
        side = self._bus.enter()[1]
        topics = [(_topic(target, self._default_exchange), priority) for target, priority in targets_and_priorities]
        listener = PollingListener(self._bus, partial(_read_notification, self._bus, side), -1)
        listener.open(_Side.listen, topics, _name(pool) if pool else None, max(_CREDIT, 2 * batch_size))
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def cleanup(self) -> None:
        """Disconnect."""
        self._bus.close()


def _patience(retry: int | None) -> float | None:
    return None if retry is None else _TRY * (retry + 1)


def _seconds(text: object) -> float:
    """Return the seconds since the epoch of a timestamp, or those of now."""
    with suppress(TypeError, ValueError):
        when = datetime.fromisoformat(text)  # type: ignore[arg-type]  # other types raise
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return datetime.now(UTC).timestamp()


def _read_call(bus: ProcessBus[_Side], payloads: Payloads, item: Delivery | Envelope) -> RpcIncoming | None:
    delivery, envelope = (None, item) if isinstance(item, Envelope) else (item, item.envelope)
    meta = envelope.meta or {}
    message: dict[str, Any] = {"method": meta.get(METHOD), "args": {}}
    for key, field in (("namespace", NAMESPACE), ("version", VERSION)):
        if field in meta:
            message[key] = meta[field]
    incoming = RpcIncoming(bus, payloads, delivery, dict(envelope.headers or {}), message, meta.get(MONITOR))
    if delivery is not None and (delivery.lost or delivery.cancelled):
        bus.post(delivery.ack, Outcome(OutcomeKind.CANCELLED))
        return None
    try:
        args = payloads.unpack(envelope)
        if not isinstance(args, Mapping):
            raise BadPayload(envelope.content_type, "a call takes keywords")  # noqa: TRY301
    except BadPayload as error:
        _log.error("a call cannot be read: %s", error)  # the text says all
        incoming.reply(failure=(type(error), error, error.__traceback__))
        return None
    message["args"] = dict(args)
    return incoming


def _read_notification(bus: ProcessBus[_Side], side: _Side, delivery: Delivery) -> Incoming | None:
    try:
        limit = side.engine.capabilities.max_body
        read = unpack(side.payloads, delivery.envelope, delivery.attempt, limit)
        when = datetime.fromtimestamp(read.timestamp, UTC)
    except (BadPayload, ValueError, OverflowError, OSError) as error:  # the time may be none that a clock shows
        _log.error("a notification cannot be read: %s", error)  # the text says all
        bus.post(partial(delivery.reject, requeue=False, reason=str(error)))
        return None
    message = {
        "message_id": read.id,
        "publisher_id": read.publisher,
        "event_type": read.event,
        "priority": read.priority.upper(),
        "payload": read.payload,
        "timestamp": str(when.replace(tzinfo=None)),
    }
    return Incoming(bus, delivery, dict(read.headers), message)
