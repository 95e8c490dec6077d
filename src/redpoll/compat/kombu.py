"""A transport of kombu: importing this module makes URLs like ``redpoll://host:port`` work in kombu, and in Celery.

Queues are queues of the hub, by their own names; exchanges are subjects, and a binding is a topic of its queue, so that all
programs share them. What a program has taken from a queue stays with it while it lives, however long that takes: there is no
visibility timeout. What it has not acknowledged when it dies, others have within a second.

A process has one link to each hub, and a forked process has its own. The options of `redpoll.connect` are
``transport_options={"redpoll": {…}}``.
"""

from __future__ import annotations

import base64
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from redpoll.bus.bus import Bus
from redpoll.bus.engine import Consumer, Delivery
from redpoll.bus.envelope import Envelope
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.process_bus import ProcessBus
from redpoll.bus.records import QueueInfo, QueueSpec, Receipt, words_match
from redpoll.errors import (
    BusError,
    Closed,
    LinkError,
    NoRoute,
    QueueEmpty,
    RedpollError,
    SendError,
    SpecConflict,
    Unsupported,
    UsageError,
)
from redpoll.platforms import after_fork

__all__ = ["Channel", "LoopSide", "QoS", "Transport", "hub_url", "shared_bus"]

_log = logging.getLogger("redpoll.compat.kombu")

#: Messages of a consumer without a limit that are held here at most.
_UNLIMITED: Final = 10_000
#: The hub of a URL without; seconds to connect where the connection does not say; and for a message to be taken.
_HOST: Final = "127.0.0.1"
_PORT: Final = 5683
_CONNECT: Final = 5.0
_PUBLISH: Final = 30.0
#: Seconds without a consumer after which a queue is deleted that deletes itself.
_EXPIRES: Final = 60.0
#: Tries to change the topics of a queue while others do so.
_TRIES: Final = 100
_MODE: Final = "delivery_mode"
_TRANSIENT: Final = 1
#: The fields of a message that was handed out before, as its attempts count lost programs alone.
_RETURNED: Final = {"returned": True}


class LoopSide:
    """The half of the transport on the event loop.

    Args:
        bus: The bus.
    """

    def __init__(self, bus: Bus) -> None:
        self.engine = bus.engine
        #: The queues that were declared here, with their topics, for a queue that is deleted while it is consumed.
        self._specs: dict[str, QueueSpec] = {}

    async def inspect(self, queue: str) -> QueueInfo | None:
        """Return what a queue holds; None if there is none."""
        try:
            return await self.engine.inspect(queue)
        except NoRoute:
            return None

    async def declare(self, spec: QueueSpec) -> QueueInfo:
        """Make sure that a queue is there; the topics of one that is there stay.

        Raises:
            SpecConflict: It differs in what never changes.
        """
        for _ in range(_TRIES):
            found = await self.inspect(spec.name)
            if found is not None:
                self._specs[spec.name] = found.spec
                for field in ("kind", "durable", "priorities"):
                    there, asked = getattr(found.spec, field), getattr(spec, field)
                    if there != asked:
                        raise SpecConflict(spec.name, field, there, asked)
                return found
            # It may be made, and bound, by another one meanwhile.
            with suppress(SpecConflict):
                await self.engine.declare(spec)
        raise SpecConflict(spec.name, "topics", (), spec.topics)

    async def rebind(self, queue: str, *, add: str = "", remove: str = "") -> None:
        """Change the topics of a queue, whatever others do with them at the same time.

        Raises:
            NoRoute: It is not there.
            SpecConflict: Others change it all the time.
        """
        spec = wanted = QueueSpec(queue)
        for _ in range(_TRIES):
            spec = (await self.engine.inspect(queue)).spec
            topics = tuple(dict.fromkeys((*(each for each in spec.topics if each != remove), *([add] if add else ()))))
            self._specs[queue] = wanted = replace(spec, topics=topics)
            if topics == spec.topics:
                return
            await self.engine.declare(wanted, update=True)
        raise SpecConflict(queue, "topics", spec.topics, wanted.topics)

    def send(self, envelope: Envelope, queue: str, options: Mapping[str, Any]) -> Awaitable[Receipt]:
        """Publish to a queue.

        Raises:
            NoRoute: It is not there.
        """
        return self.engine.publish(envelope, queue=queue, **options)

    async def publish(self, envelope: Envelope, queue: str | None, options: Mapping[str, Any]) -> None:
        """Publish, to a queue, which is made where it is not there, or to a subject."""
        try:
            await self.engine.publish(envelope, queue=queue, **options)
        except NoRoute:
            if queue is not None:
                await self.declare(QueueSpec(queue, max_attempts=None))
                await self.engine.publish(envelope, queue=queue, **options)

    async def route(self, envelope: Envelope, subject: str, options: Mapping[str, Any]) -> None:
        """Publish with a priority or a ttl to the queues of a subject, one by one: events have neither."""
        for name in await self.engine.queues():
            info = await self.inspect(name)
            if info is not None and any(words_match(topic)(subject) for topic in info.spec.topics):
                await self.publish(envelope, name, options)

    async def consume(self, queue: str, credit: int, sink: Callable[[Delivery], object]) -> LastingConsumer:
        """Take what is in a queue, also after it was deleted and made again."""

        async def begin() -> Consumer:
            return await self.engine.consume(queue, credit=credit, sink=sink)

        async def again() -> Consumer:
            if queue in self._specs:
                await self.declare(self._specs[queue])
            return await begin()

        return await LastingConsumer(self.engine.clock, queue, begin, again).open()

    async def take(self, queue: str) -> Delivery | None:
        """Take a message, if there is one."""
        try:
            return await self.engine.take(queue)
        except (QueueEmpty, NoRoute):
            return None

    async def delete(self, queue: str, if_unused: bool) -> None:
        """Delete a queue."""
        self._specs.pop(queue, None)
        with suppress(NoRoute):
            await self.engine.delete(queue, if_unused=if_unused)

    async def purge(self, queue: str) -> int:
        """Remove what waits in a queue; return how much."""
        try:
            return await self.engine.purge(queue)
        except NoRoute:
            return 0


_buses: dict[tuple[str, str], tuple[ProcessBus[LoopSide], int]] = {}
_buses_lock = threading.RLock()


def _forget() -> None:
    """Have a forked process make buses of its own; another thread of its parent may have held the lock."""
    global _buses_lock  # noqa: PLW0603
    _buses_lock = threading.RLock()
    _buses.clear()


after_fork(_forget)


def shared_bus(url: str, options: Mapping[str, Any]) -> tuple[ProcessBus[LoopSide], Callable[[], None]]:
    """Return the bus of this process for a URL, and a function that lets go of it, once: with the last one it is closed."""
    key = (url, repr(sorted(options.items())))
    with _buses_lock:
        bus, users = _buses.get(key) or (ProcessBus(url, LoopSide, **options), 0)
        _buses[key] = (bus, users + 1)

    held = True

    def let_go() -> None:
        nonlocal held
        with _buses_lock:
            found, users = _buses.get(key, (None, 0))
            if not held or found is not bus:
                return
            held = False
            _buses[key] = (bus, users - 1)
            if users > 1:
                return
            del _buses[key]
        bus.close()

    return bus, let_go


def _subject(exchange: str, routing_key: str) -> str:
    """Return the subject of an exchange and a routing key; words of the key are words of the subject."""
    scope = quote(exchange, safe="").replace(".", "/")
    return f"kombu.{scope}.{quote(routing_key, safe='/')}" if routing_key else f"kombu.{scope}"


def _pattern(kind: str, exchange: str, routing_key: str) -> str:
    """Return the topic of a binding."""
    if kind == "fanout":
        return f"{_subject(exchange, '')}.#"
    if kind == "topic":
        return ".".join(
            word if word in {"*", "#"} else quote(word, safe="/")
            for word in (_subject(exchange, ""), *filter(None, [routing_key]))
            for word in word.split(".")
        )
    return _subject(exchange, routing_key)


class QoS(virtual.QoS):  # type: ignore[misc]  # it has no types
    """The messages that a channel has taken: the hub holds them for this process."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._held: dict[str, Delivery] = {}

    def hold(self, delivery_tag: str, delivery: Delivery) -> None:
        """Note a message that was handed out."""
        self._held[delivery_tag] = delivery

    def can_consume(self) -> bool:
        """Return True if another message may be taken."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def ack(self, delivery_tag: str) -> None:
        """End a message."""
        delivery = self._held.pop(delivery_tag, None)
        if delivery is not None:
            self.channel.post(delivery.ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back; without `requeue` it becomes a dead letter."""
        delivery = self._held.pop(delivery_tag, None)
        if delivery is not None and requeue:
            self.channel.give_back(delivery)
        elif delivery is not None:
            self.channel.post(partial(delivery.reject, requeue=False, reason="rejected"))

    def restore_unacked(self) -> list[Any]:
        """Give all messages back."""
        for delivery_tag in tuple(self._held):
            self.reject(delivery_tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002  # kombu's own interface
        """Give all messages back; at the end of a process the hub does so itself."""
        self._on_collect.cancel()
        self.restore_unacked()


class Channel(virtual.Channel):  # type: ignore[misc]  # it has no types
    """A channel; used by one thread at a time, but for acknowledgements, which any thread may send."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    #: Text stays text: only bytes are written as base64.
    body_encoding = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._bus: ProcessBus[LoopSide] = connection.bus
        self._home = self._bus.enter()[0]
        self._returning: deque[Delivery] = deque()
        self._taking: dict[str, tuple[LastingConsumer, Callable[[Any], object], bool]] = {}

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a plain function on the loop of the process that opened this channel; elsewhere do nothing."""
        with suppress(Closed, UsageError):
            self._home.handover.post(function, args)

    def give_back(self, delivery: Delivery) -> None:
        """Give a message back; several that are given back together keep their order."""
        self._returning.append(delivery)
        self.post(self._give_back)

    def _give_back(self) -> None:
        # The last one first: each goes to the front of its queue.
        while self._returning:
            self._returning.pop().reject(meta=_RETURNED)

    def _run(self, method: Callable[..., Any], *args: Any, wait: Callable[..., Any] | None = None) -> Any:
        try:
            return (wait or self._bus.run)(method, *args)
        except (SpecConflict, Unsupported) as error:
            raise ChannelError(f"PRECONDITION_FAILED - {error}", (50, 10), "Channel", "406") from error

    # -- queues and bindings

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> Any:
        """Return the arguments of a queue, as RabbitMQ has them."""
        return to_rabbitmq_queue_arguments(arguments, **options)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002  # nowait
    ) -> Any:
        """Make sure that a queue is there; see `Queue` of kombu for its settings."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            info = self._run(LoopSide.inspect, name)
            if info is None:
                raise ChannelError(f"NOT_FOUND - no queue {name!r}", (50, 10), "Channel.queue_declare", "404")
        else:
            asked = arguments or {}
            fleeting = exclusive or auto_delete
            seconds = {key: asked[key] / 1000 for key in ("x-expires", "x-message-ttl") if asked.get(key)}
            bounded = "x-max-length" in asked or "x-max-length-bytes" in asked
            spec = QueueSpec(
                name,
                kind="events" if fleeting else "task",
                durable=durable and not fleeting,
                max_length=asked.get("x-max-length"),
                max_bytes=asked.get("x-max-length-bytes", 2**30),
                at_limit="drop-old" if bounded else "wait",
                expires=seconds.get("x-expires", _EXPIRES if fleeting else None),
                ttl=seconds.get("x-message-ttl"),
                priorities=min(int(asked.get("x-max-priority") or 0), 31) + 1,
                max_attempts=None,
            )
            info = self._run(LoopSide.declare, spec)
        return queue_declare_ok_t(name, info.ready, info.consumers)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,  # noqa: ARG002  # of exchanges of other types
        **kwargs: Any,  # noqa: ARG002  # nowait
    ) -> None:
        """Have a queue take what is sent to an exchange."""
        self._run(partial(LoopSide.rebind, add=self._topic(exchange, routing_key)), queue)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """End that."""
        self._run(partial(LoopSide.rebind, remove=self._topic(exchange, routing_key)), queue)

    def _topic(self, exchange: str | None, routing_key: str) -> str:
        name = exchange or "amq.direct"
        return _pattern(self.typeof(name).type, name, routing_key)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:  # noqa: ARG002
        """Delete a queue, and its bindings."""
        if not (if_empty and self._size(queue)):
            self._run(LoopSide.delete, queue, if_unused)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:  # noqa: ARG002
        """Forget an exchange; its queues stay as they are."""
        self.state.exchanges.pop(exchange, None)

    def _purge(self, queue: str) -> Any:
        return self._run(LoopSide.purge, queue)

    def _size(self, queue: str) -> int:
        info = self._run(LoopSide.inspect, queue)
        return info.ready if info else 0

    # -- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Publish a message.

        One that is to be persistent (kombu's default) is on the hub's disk when this returns; another is on its way.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        self._publish(message, exchange, routing_key)

    def _publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        properties = message["properties"]
        expiration = properties.get("expiration")
        options: dict[str, Any] = {
            "priority": self._get_message_priority(message),
            "ttl": None if expiration is None else int(expiration) / 1000,
            "keep": False,
            "confirm": properties.get(_MODE) != _TRANSIENT,
            "timeout": _PUBLISH,
        }
        envelope = Envelope("json", dumps(message).encode())
        if not exchange:
            try:
                self._run(LoopSide.send, envelope, routing_key, options, wait=self._bus.ask)
            except NoRoute:
                self._run(LoopSide.publish, envelope, routing_key, options)
        elif options["priority"] or expiration is not None:
            self._run(LoopSide.route, envelope, _subject(exchange, routing_key), options)
        else:
            options["subject"] = _subject(exchange, routing_key)
            self._run(LoopSide.publish, envelope, None, options)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:  # noqa: ARG002
        """Return what JSON can have of a body, and how it was made."""
        return (base64.b64encode(body).decode(), "base64") if isinstance(body, bytes) else (body, None)

    # -- taking

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Take messages from a queue: as many at a time as the prefetch count says, which holds for each queue."""
        credit = _UNLIMITED if no_ack else self.qos.prefetch_count or _UNLIMITED
        sink = partial(self.connection.put, self, consumer_tag)
        consumer = self._run(LoopSide.consume, queue, credit, sink)
        self._taking[consumer_tag] = (consumer, callback, no_ack)
        self._consumers.add(consumer_tag)
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Take no more; what was not handed to the callback goes back."""
        taking = self._taking.pop(consumer_tag, None)
        if taking is None:
            return
        self._consumers.discard(consumer_tag)
        self._active_queues.remove(self._tag_to_queue.pop(consumer_tag))
        if not self._home._is_inherited:
            with suppress(RedpollError):
                self._bus.run(lambda _: taking[0].close())
            self.connection.give_back(self, consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return a message, or None."""
        while (delivery := self._run(LoopSide.take, queue)) is not None:
            message = self._message(delivery, no_ack)
            if message is not None:
                return message
        return None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:  # noqa: ARG002
        """Set the prefetch count, for each queue; 0 is no limit."""
        self.qos.prefetch_count = prefetch_count
        for consumer, _, no_ack in self._taking.values():
            if not no_ack:
                self.post(consumer.set_credit, prefetch_count or _UNLIMITED)

    def deliver(self, consumer_tag: str, delivery: Delivery) -> None:
        """Hand a message to the callback of its consumer; one that is gone gives it back."""
        taking = self._taking.get(consumer_tag)
        if taking is None:
            self.give_back(delivery)
        else:
            message = self._message(delivery, taking[2])
            if message is not None:
                taking[1](message)

    def _message(self, delivery: Delivery, no_ack: bool) -> Any:
        """Return a message; one that is not kombu's becomes a dead letter, and is None."""
        try:
            payload = loads(bytes(delivery.envelope.body))
            tag = payload["properties"]["delivery_tag"] = uuid()
            payload["properties"]["delivery_info"]["redelivered"] = delivery.attempt > 1 or bool(delivery.envelope.meta)
            message = self.Message(payload, channel=self)
        except Exception as error:  # noqa: BLE001  # another program may have sent anything
            reason = f"not a message of kombu: {type(error).__name__}: {error}"
            _log.warning("a message becomes a dead letter: %s", reason)
            self.post(partial(delivery.reject, requeue=False, reason=reason))
            return None
        if no_ack:
            self.post(delivery.ack)
        else:
            self.qos.hold(tag, delivery)
        return message

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:  # noqa: ARG002
        """Wait for a message and hand it out; see `Transport.drain_events`."""
        self.connection.drain_events(self.connection, timeout)

    def close(self) -> None:
        """Take no more, and give back what was not acknowledged."""
        if not self.closed:
            for consumer_tag in tuple(self._taking):
                self.basic_cancel(consumer_tag)
        super().close()


class Transport(virtual.Transport):  # type: ignore[misc]  # it has no types
    """The transport of ``redpoll://``."""

    Channel = Channel
    default_port = _PORT
    driver_type = driver_name = "redpoll"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (*virtual.Transport.connection_errors, OSError, LinkError, SendError, Closed)
    channel_errors = (*virtual.Transport.channel_errors, BusError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.bus: ProcessBus[LoopSide]
        self._let_go: Callable[[], None] = lambda: None
        self._ready: deque[tuple[Any, str, Delivery]] = deque()
        self._woken = False
        self._pipe: tuple[socket.socket, socket.socket] | None = None
        self._loop: Any = None

    def driver_version(self) -> str:
        """Return the version of redpoll."""
        from redpoll import __version__

        return __version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The host and the port of a URL without."""
        return {"port": _PORT, "hostname": _HOST}

    def establish_connection(self) -> Any:
        """Connect.

        Raises:
            OSError: Nothing listens there, or does not answer in time (``connect_timeout`` of the connection, 5 s).
            DialFailed: It is no hub.
            UsageError: It is the URL of another engine.
        """
        client = self.client
        url = hub_url(client.hostname, client.port, client.userid, client.password)
        self.bus, let_go = shared_bus(url, client.transport_options.get("redpoll", {}))
        try:
            if not self.bus.entered:
                # Refused at once, where the engine would wait for a hub that starts.
                address = (client.hostname or _HOST, client.port or _PORT)
                socket.create_connection(address, client.connect_timeout or _CONNECT).close()
            self.bus.enter()
        except BaseException:
            let_go()
            raise
        self._let_go = let_go
        self._pipe = socket.socketpair()
        self._pipe[1].setblocking(False)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and the link to the hub if no other connection of this process uses it."""
        super().close_connection(connection)
        let_go, self._let_go = self._let_go, lambda: None
        let_go()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.remove(pipe[0].fileno())
            for end in pipe:
                end.close()

    def put(self, channel: Any, consumer_tag: str, delivery: Delivery) -> None:
        """On the loop: hand a message to the thread that drains."""
        self._ready.append((channel, consumer_tag, delivery))
        self._wake()

    def _wake(self) -> None:
        pipe = self._pipe
        if not self._woken and pipe is not None:
            self._woken = True
            with suppress(OSError):
                pipe[1].send(b"\0")

    def give_back(self, channel: Any, consumer_tag: str) -> None:
        """Give back the messages of a consumer that is gone."""
        for _ in range(len(self._ready)):
            item = self._ready.popleft()
            if item[:2] == (channel, consumer_tag):
                channel.give_back(item[2])
            else:
                self._ready.append(item)

    def _drain(self) -> bool:
        """Hand out what is there; return False if nothing was."""
        assert self._pipe is not None  # noqa: S101  # it is connected
        self._pipe[0].setblocking(False)
        with suppress(BlockingIOError):
            self._pipe[0].recv(64)
        # First: what comes from here on wakes the thread again, or is handed out below.
        self._woken = False
        count = len(self._ready)
        try:
            for _ in range(count):
                if not self._ready:
                    break
                channel, consumer_tag, delivery = self._ready.popleft()
                channel.deliver(consumer_tag, delivery)
        finally:
            if self._ready:
                self._wake()
        return count > 0

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002
        """Hand out the messages that are there; wait for the first one.

        Args:
            connection: This transport.
            timeout: Seconds to wait; None is no limit.

        Raises:
            TimeoutError: None came.
            Closed: The link was closed.
        """
        end = None if timeout is None else monotonic() + timeout
        while not self._drain():
            left = None if end is None else end - monotonic()
            if self._pipe is None or (left is not None and left <= 0):
                raise socket.timeout  # noqa: UP041  # as kombu says it
            self._pipe[0].settimeout(left)
            # A timeout is seen above.
            with suppress(TimeoutError):
                self._pipe[0].recv(64)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have kombu's event loop hand out messages."""
        if self._pipe is not None:
            self._loop = loop
            loop.add_reader(self._pipe[0].fileno(), self.on_readable, connection, loop)
            self._wake()

    def on_readable(self, connection: Any, loop: Any) -> None:  # noqa: ARG002
        """Hand out the messages that are there."""
        if self._pipe is not None:
            self._drain()


def hub_url(
    hostname: str | None, port: int | None, userid: str | None, password: str | None, scheme: str = "redpoll"
) -> str:
    """Return the URL of a hub, of the parts that kombu finds in one.

    Raises:
        UsageError: It is the URL of another engine, as ``redpoll+amqp://``.
    """
    host = hostname or _HOST
    if "://" in host or scheme != "redpoll":
        raise UsageError(
            "the transport and the result backend of redpoll need a hub, not another engine",
            "give redpoll://HOST:PORT; for RabbitMQ give amqp://HOST, which is kombu's own, as the broker: results can be "
            "those of a hub nevertheless",
        )
    shown = f"[{host}]" if ":" in host else quote(host)
    secret = f":{quote(password, safe='')}" if password else ""
    who = f"{quote(userid, safe='')}{secret}@" if userid else ""
    return f"redpoll://{who}{shown}:{port or _PORT}"


TRANSPORT_ALIASES["redpoll"] = f"{__name__}:Transport"
