"""A connection to RabbitMQ and its channels. It is made once: recovery is the business of its owner.

A request on a channel is answered in order, so that a request that was cancelled costs nothing but its answer, which is
dropped. All that is written in a turn of the loop is sent together.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from redpoll.bus.engines.amqp.pulse import Beat, pulse
from redpoll.bus.engines.amqp.seal import Seal
from redpoll.bus.engines.amqp.wire import HEADER, HEARTBEAT, Content, Frames, Method, Properties, encode, encode_content
from redpoll.errors import ProtocolError, RedpollError

__all__ = ["Broken", "Channel", "Link", "Login", "Owner", "Rejected"]

_log = logging.getLogger("redpoll.bus")

#: Channels of a connection, where the server names no smaller number.
_CHANNELS: Final = 2_047
#: Size of the largest frame, in bytes, where the server names no smaller one.
_FRAME: Final = 131_072
#: Bytes that wait for a server that does not read, before the owner is told; and that are kept for the end of a turn.
_BUFFER: Final = 2**20
_CHUNK: Final = 2**18
#: Seconds that acknowledgements wait for more of them.
_SOON: Final = 0.005
#: Parts of the heartbeat's time without a sign of life, after which the owner is told, and after which the link is lost.
_SUSPECT: Final = 0.75
_DEAD: Final = 1.25
#: Seconds that the loop may be late before silence is not the server's.
_LAG: Final = 0.25
#: The code with which a server closes a connection as it stops, or as its operator told it to: no operation was refused.
_FORCED: Final = 320
#: The abilities that the server is told of (https://www.rabbitmq.com/docs/connections#capabilities).
_ABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
)


class Rejected(Exception):  # noqa: N818  # for this package alone
    """The server closed a channel or the connection because of an operation.

    Attributes:
        code: Its number: 403, 404, 405, 406 and others.
        text: Its text.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


class Broken(ConnectionError):  # noqa: N818
    """The connection was lost before the server answered."""


@dataclass(frozen=True, slots=True)
class Login:
    """The data of the handshake."""

    user: str
    password: str = field(repr=False)
    virtual_host: str = "/"
    heartbeat: int = 4
    """Seconds; the server may name less."""
    name: str = ""
    """The name of the connection, for RabbitMQ's own pages."""


class Owner(Protocol):
    """The events of a link, for its owner."""

    def lost(self, link: Link, error: Exception) -> None:
        """Note that the link is gone; it is called once, when its channels were told."""

    def blocked(self, link: Link, reason: str | None) -> None:
        """Note that the server reads no more, and why; None: it reads again."""

    def filled(self, link: Link, full: bool) -> None:
        """Note that the server does not read as fast as is written, or that it caught up."""

    def suspected(self, link: Link, seconds: float | None) -> None:
        """Note that the server was silent for so long; None: it is heard again."""


class Channel:
    """A channel. Its methods are for the loop of its link.

    Args:
        link: Its link.
        number: Its number.
        closed: Is called with the error once it is closed by the server, or with the link.

    Attributes:
        error: The reason why it is closed; None while it is open.
        tag: Number of the last message that was published on it.
        prefetch: Deliveries that the server leaves open at most; 0 is none, or not known.
        confirmed: Is called with (tag, multiple, taken) when the server confirms messages.
        returned: Is called with a message that has no route.
    """

    def __init__(self, link: Link, number: int, closed: Callable[[Exception], object] | None) -> None:
        self.link = link
        self.number = number
        self.error: Exception | None = None
        self.tag = 0
        self.prefetch = 0
        self.confirmed: Callable[[int, bool, bool], object] | None = None
        self.returned: Callable[[Content], object] | None = None
        self._closed = closed
        self._asked: deque[asyncio.Future[tuple[Any, ...]]] = deque()
        self._consumers: dict[str, tuple[Callable[[Content], object], Callable[[], object], bool]] = {}
        # Deliveries that were not acknowledged, in order; and those of them that are to be.
        self._open: dict[int, None] = {}
        self._settled: set[int] = set()
        self._retired = False
        self._closing = False

    @property
    def usable(self) -> bool:
        """True unless it is closed, or what is written to it goes nowhere."""
        transport = self.link.transport
        return self.error is None and not self._closing and transport is not None and not transport.is_closing()

    def ask(self, name: str, *arguments: Any) -> asyncio.Future[tuple[Any, ...]]:
        """Send a request, and return a future of the arguments of its answer; cancelling it drops the answer.

        Raises:
            UsageError: AMQP cannot carry an argument; nothing was sent.
            Rejected: The server closed the channel, because of this or of another request (when awaited, as the next).
            Broken: The link is lost.
        """
        future: asyncio.Future[tuple[Any, ...]] = self.link.loop.create_future()
        if self.error is not None or self._closing:
            future.set_exception(self.error or Broken("the channel was closed"))
            return future
        # First: what cannot be sent has no answer, and the next request would wait for that.
        request = encode(self.number, name, *arguments)
        self._asked.append(future)
        self.link.write(request)
        return future

    async def get(self, queue: str) -> Content | None:
        """Take a message from a queue; None: it is empty.

        Cancelled, the message would stay with this channel: shield it.
        """
        answer = await self.ask("basic.get", 0, queue, 0)
        return answer[0] if isinstance(answer[0], Content) else None

    def publish(
        self, exchange: str, key: str, properties: Properties, body: bytes | memoryview, mandatory: bool
    ) -> int:
        """Publish a message, and return its number on this channel."""
        link = self.link
        link.write(*encode_content(self.number, exchange, key, mandatory, properties, body, link.frame_max))
        self.tag += 1
        return self.tag

    async def consume(
        self,
        queue: str,
        tag: str,
        deliver: Callable[[Content], object],
        cancelled: Callable[[], object],
        *,
        unacknowledged: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to consume.

        Args:
            queue: Name of the queue.
            tag: Name of the consumer, new on this channel.
            deliver: Is called with each message.
            cancelled: Is called when the server ends it: the queue was deleted, or its node is lost.
            unacknowledged: True for messages that need no acknowledgement.
            exclusive: True to be the only consumer.
            arguments: Of the consumer.
        """
        self._consumers[tag] = (deliver, cancelled, not unacknowledged)
        try:
            bits = (2 if unacknowledged else 0) | (4 if exclusive else 0)
            await self.ask("basic.consume", 0, queue, tag, bits, arguments or {})
        except BaseException:
            self._consumers.pop(tag, None)
            raise

    async def cancel(self, tag: str) -> None:
        """End a consumer; what arrives until this is done is delivered."""
        try:
            await self.ask("basic.cancel", tag, 0)
        finally:
            self._consumers.pop(tag, None)

    def settle(self, tag: int, *, soon: bool = False) -> None:
        """Acknowledge a delivery. Acknowledgements of a turn of the loop are sent together.

        Args:
            tag: Its number.
            soon: True where it may come twice: it is sent with what else there is, or some milliseconds later, as long as
                that holds no more than a quarter of the prefetch.
        """
        if self.error is None and tag in self._open:
            link = self.link
            if not self._settled:
                link.flushing.append(self._acknowledge)
                if soon:
                    link.loop.call_later(_SOON, link.arm)
            self._settled.add(tag)
            if not soon or 4 * len(self._settled) > self.prefetch:
                link.arm()

    def _acknowledge(self) -> None:
        settled, self._settled = self._settled, set()
        end, count = 0, 0
        for tag in self._open:
            if tag not in settled:
                break
            end, count = tag, count + 1
        for tag in settled:
            del self._open[tag]
        if count:
            # Every open delivery up to there.
            self.link.write(encode(self.number, "basic.ack", end, 1))
        for tag in sorted(each for each in settled if each > end):
            self.link.write(encode(self.number, "basic.ack", tag, 0))
        self._look_retired()

    def give_back(self, tag: int, requeue: bool) -> None:
        """Reject a delivery: back to its queue, or to the dead letters."""
        if self.error is None and tag in self._open:
            del self._open[tag]
            self._settled.discard(tag)
            self.link.write(encode(self.number, "basic.nack", tag, 2 if requeue else 0))
            self._look_retired()

    def retire(self) -> None:
        """Close it once all deliveries are settled."""
        self._retired = True
        self._look_retired()

    def _look_retired(self) -> None:
        if self._retired and not self._open and self.error is None and not self._closing:
            self._retired = False
            self._say_close()

    def abandon(self) -> None:
        """Close it at once, without waiting for that; open deliveries go back."""
        self._open.clear()
        self.retire()

    def _say_close(self) -> asyncio.Future[tuple[Any, ...]]:
        closing = self.ask("channel.close", 200, "", 0, 0)
        # The server knows nothing of it behind that: another word would end the connection.
        self._closing = True
        self._consumers.clear()
        self._open.clear()
        self._settled.clear()
        return closing

    async def close(self) -> None:
        """Close it."""
        if self.error is None and not self._closing:
            # Cancelled, it is closed nevertheless.
            with suppress(Rejected, Broken):
                await asyncio.shield(self._say_close())

    # -- for the link

    def take(self, frame: Method | Content) -> None:
        """Take a method that arrived."""
        name, arguments = frame.name, frame.arguments
        if name == "basic.deliver":
            found = self._consumers.get(arguments[0])
            if found is not None:
                if found[2]:
                    self._open[arguments[1]] = None
                found[0](frame)  # type: ignore[arg-type]
        elif name in {"basic.ack", "basic.nack"}:
            if self.confirmed is not None:
                self.confirmed(arguments[0], bool(arguments[1] & 1), name == "basic.ack")
        elif name == "basic.return":
            if self.returned is not None:
                self.returned(frame)  # type: ignore[arg-type]
        elif name == "basic.cancel":
            found = self._consumers.pop(arguments[0], None)
            if self.link.answers_cancel:
                self.link.write(encode(self.number, "basic.cancel-ok", arguments[0]))
            if found is not None:
                found[1]()
        elif name == "channel.close":
            self.link.write(encode(self.number, "channel.close-ok"))
            self.link.release(self)
            self._end(Rejected(arguments[0], arguments[1]))
        elif name == "channel.close-ok":
            # RabbitMQ leaves requests before that unanswered which other processes of its own carry out, as basic.consume.
            self._end(Broken("the channel was closed"), told=False)
            self.link.release(self)
        elif name == "channel.flow":
            self.link.write(encode(self.number, "channel.flow-ok", arguments[0]))
        elif self._asked:
            future = self._asked.popleft()
            if name == "basic.get-ok":
                self._open[arguments[0]] = None
            if not future.done():
                future.set_result((frame,) if isinstance(frame, Content) else arguments or ("",))

    def _end(self, error: Exception, told: bool = True) -> None:
        if self.error is not None:
            return
        self.error = error
        asked, self._asked = self._asked, deque()
        for future in asked:
            if not future.done():
                future.set_exception(error)
                future.exception()  # it may not be awaited
        self._consumers.clear()
        if told and self._closed is not None:
            self._closed(error)


class Link(asyncio.Protocol):
    """A connection. Made for `loop.create_connection`; then `opened` is awaited.

    Args:
        login: The data of the handshake.
        owner: Is told of what happens to it.
        seal: Encrypts; None does not.

    Attributes:
        opened: Is done once the server has let it in.
        version: Of the server, as numbers.
        heartbeat: Seconds; the smaller one of both ends' values.
        frame_max: Size of the largest frame, in bytes.
        answers_cancel: Whether the server waits for an answer when it cancels a consumer (RabbitMQ 4.3).
        flushing: Functions that write at the end of this turn of the loop.
    """

    def __init__(self, login: Login, owner: Owner, seal: Seal | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.version: tuple[int, ...] = ()
        self.heartbeat = 0
        self.frame_max = _FRAME
        self.answers_cancel = False
        self.flushing: list[Callable[[], object]] = []
        self.transport: asyncio.Transport | None = None
        self._login = login
        self._owner = owner
        self._seal = seal
        self._frames = Frames()
        self._channels: dict[int, Channel] = {}
        self._channel_max = _CHANNELS
        self._next = 0
        self._out: list[bytes | memoryview] = []
        self._size = 0
        self._armed = False
        self._last_read = 0.0
        self._suspect = False
        self._blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: Beat | None = None
        self._error: Exception | None = None
        self._ended: asyncio.Future[None] = self.loop.create_future()

    @property
    def unsent(self) -> int:
        """Bytes that wait until the server reads."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def error(self) -> Exception | None:
        """The reason why it is lost; None while it is not."""
        return self._error

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = cast("asyncio.Transport", transport)
        self._last_read = self.loop.time()
        self.transport.set_write_buffer_limits(_BUFFER)
        self._beat = Beat(self.transport, self._seal)
        if self._seal is None:
            self._beat.write(HEADER)
        else:
            self._decrypt(b"")

    def pause_writing(self) -> None:
        """Tell the owner."""
        self._owner.filled(self, True)

    def resume_writing(self) -> None:
        """Tell the owner."""
        self._owner.filled(self, False)

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        self._last_read = self.loop.time()
        if self._suspect:
            self._suspect = False
            self._owner.suspected(self, None)
        if self._seal is not None:
            data = self._decrypt(data)
        try:
            for frame in self._frames.feed(data):
                if frame.channel:
                    channel = self._channels.get(frame.channel)
                    if channel is not None:
                        channel.take(frame)
                elif frame.name != "heartbeat":
                    self._take(frame)
        except RedpollError as error:
            self.abort(error)

    def _decrypt(self, data: bytes) -> bytes:
        beat, seal = self._beat, self._seal
        if beat is None or seal is None:
            return data
        was_open = seal.open
        try:
            data = beat.receive(data)
        except ssl.SSLError as error:
            self.abort(error)
            return b""
        if seal.open and not was_open:
            beat.write(HEADER)
        return data

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the channels and the owner."""
        self.abort(exc or Broken("the server ended the connection"))
        if not self._ended.done():
            self._ended.set_result(None)

    # -- for channels and the owner

    async def channel(self, closed: Callable[[Exception], object] | None = None) -> Channel:
        """Open a channel.

        Raises:
            Broken: The link is lost.
            Rejected: The server refuses it.
            ProtocolError: There are as many channels as the server allows.
        """
        if self._error is not None:
            raise Broken(str(self._error)) from self._error
        if len(self._channels) >= self._channel_max:
            raise ProtocolError(f"{len(self._channels)} channels are open: the limit is {self._channel_max}")
        number = self._next % self._channel_max + 1
        while number in self._channels:
            number = number % self._channel_max + 1
        self._next = number
        channel = self._channels[number] = Channel(self, number, closed)
        try:
            await channel.ask("channel.open", "")
        except BaseException:
            channel.retire()
            raise
        return channel

    @asynccontextmanager
    async def opening(self, closed: Callable[[Exception], object]) -> AsyncIterator[Channel]:
        """Open a channel and set it up in the block: if that fails, or is cancelled, the channel is closed.

        Raises:
            Exception: As `channel` does.
        """
        channel = await self.channel(closed)
        try:
            yield channel
        except BaseException:
            channel.abandon()
            raise

    def release(self, channel: Channel) -> None:
        """Free the number of a channel of which the server knows that it is closed."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    def write(self, *parts: bytes | memoryview) -> None:
        """Send bytes with the others of this turn of the loop."""
        if self._error is None:
            self._out += parts
            for part in parts:
                self._size += len(part)
            if self._size > _CHUNK:
                self._flush()
            else:
                self.arm()

    def arm(self) -> None:
        """Send what there is at the end of this turn of the loop."""
        if not self._armed:
            self._armed = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._armed = True
        flushing, self.flushing = self.flushing, []
        for each in flushing:
            each()
        self._armed = False
        out, self._out, self._size = self._out, [], 0
        if out and self._error is None and self._beat is not None:
            self._beat.write(out[0] if len(out) == 1 else b"".join(out))

    def abort(self, error: Exception) -> None:
        """Give the connection up."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            pulse.remove(self._beat)
        if self.transport is not None:
            self.transport.abort()
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()
        broken = error if isinstance(error, Rejected | Broken) else Broken(str(error))
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel._end(broken)
        self._owner.lost(self, error)

    async def close(self, timeout: float) -> None:
        """Close it: what was written is sent before, where the server reads.

        Args:
            timeout: Seconds to wait for the server.
        """
        if self._error is None and self.transport is not None and self.opened.done() and not self._blocked:
            self.write(encode(0, "connection.close", 200, "closed", 0, 0))
            self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.shield(self._ended)
        self.abort(Broken("it was closed"))

    # -- the connection's own methods

    def _take(self, frame: Method | Content) -> None:
        arguments = frame.arguments
        match frame.name:
            case "connection.start":
                self._start(arguments[2], arguments[3].split())
            case "connection.tune":
                self._tune(*arguments)
            case "connection.open-ok":
                if not self.opened.done():
                    self.opened.set_result(None)
                self._begin_to_beat()
            case "connection.close":
                self.write(encode(0, "connection.close-ok"))
                self._flush()
                error = Rejected(arguments[0], arguments[1])
                self.abort(Broken(str(error)) if error.code == _FORCED else error)
            case "connection.close-ok":
                self.abort(Broken("it was closed"))
            case "connection.blocked":
                self._blocked = True
                self._owner.blocked(self, arguments[0])
            case "connection.unblocked":
                self._blocked = False
                self._owner.blocked(self, None)
            case name:
                _log.warning("RabbitMQ sent %s, which was not expected", name)

    def _start(self, properties: Mapping[str, Any], mechanisms: list[bytes]) -> None:
        with suppress(ValueError):
            self.version = tuple(int(part) for part in str(properties.get("version", "")).split("-")[0].split("."))
        able = properties.get("capabilities") or {}
        self.answers_cancel = bool(able.get("accept_consumer_cancel_ok"))
        login = self._login
        if b"PLAIN" not in mechanisms:
            self.abort(ProtocolError(f"the server offers {b' '.join(mechanisms).decode()} to log in, not PLAIN"))
            return
        told = {
            "product": "redpoll",
            "connection_name": login.name,
            "capabilities": dict.fromkeys(_ABILITIES, True),
        }
        answer = f"\0{login.user}\0{login.password}"
        self.write(encode(0, "connection.start-ok", told, "PLAIN", answer, "en_US"))

    def _tune(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self._channel_max = min(channel_max or _CHANNELS, _CHANNELS)
        self.frame_max = self._frames.frame_max = min(frame_max or _FRAME, _FRAME)
        # 0 is none, for either end.
        self.heartbeat = min(each for each in (heartbeat, self._login.heartbeat) if each) if heartbeat else 0
        self.heartbeat = self.heartbeat or self._login.heartbeat
        self.write(encode(0, "connection.tune-ok", self._channel_max, self.frame_max, self.heartbeat))
        self.write(encode(0, "connection.open", self._login.virtual_host, "", 0))

    def _begin_to_beat(self) -> None:
        if self._beat is not None:
            self._beat.seconds = self.heartbeat / 2
            pulse.add(self._beat)
        self._watch(self.loop.time())

    def _watch(self, expected: float) -> None:
        """Send heartbeats, and look for those of the server."""
        now = self.loop.time()
        if now - expected > _LAG:
            # The loop was late: what the server sent meanwhile is not read yet.
            self._last_read = max(self._last_read, now - self.heartbeat * _SUSPECT / 2)
        silent = now - self._last_read
        if silent > self.heartbeat * _DEAD and not self._blocked:
            self.abort(Broken(f"the server was silent for {silent:.1f} s"))
            return
        if silent > self.heartbeat * _SUSPECT and not self._suspect:
            self._suspect = True
            self._owner.suspected(self, silent)
        beat = self._beat
        if beat is not None:
            beat.write(HEARTBEAT if time.monotonic() - beat.written > self.heartbeat / 3 else b"")
        pause = min(0.5, self.heartbeat / 8)
        self._timer = self.loop.call_later(pause, self._watch, now + pause)
