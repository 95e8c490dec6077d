"""Connections of communicators: an engine, and what kiwiPy's programs see of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import platform
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakSet

import kiwipy

from redpoll.bus.awaitables import of_thread
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import Failure
from redpoll.bus.state import EngineState
from redpoll.bus.tasks.handle import NESTED
from redpoll.bus.urls import EngineURL, find_engine
from redpoll.compat.kiwipy import defaults
from redpoll.errors import BadPayload, Closed, DecodeError, EncodeError, NoRoute, RedpollError, UsageError
from redpoll.serializers.base import Buffer

__all__ = ["Answer", "Codec", "Connection", "connect_robust", "kiwipy_errors", "run", "run_here"]

_log = logging.getLogger("redpoll.compat.kiwipy")

_PORTS: Final = {"amqp": 5672, "amqps": 5671}

Call = Callable[..., Awaitable[Any]]
"""Calls a subscriber."""


class Codec:
    """The serializer of a communicator: kiwiPy's encoder and decoder.

    Args:
        encoder: Returns bytes for a value.
        decoder: Returns the value of bytes.
    """

    name = "kiwipy"
    wants_buffer = False

    def __init__(self, encoder: Callable[[Any], Any], decoder: Callable[[bytes], Any]) -> None:
        self._encoder = encoder
        self._decoder = decoder

    def encode(self, obj: Any, /) -> bytes:
        """Encode a value.

        Raises:
            EncodeError: The encoder raised, or returned neither bytes nor text.
        """
        try:
            body = self._encoder(obj)
            return body.encode() if isinstance(body, str) else bytes(body)
        except Exception as error:
            raise EncodeError(self.name, f"{type(error).__name__}: {error}") from error

    def decode(self, data: Buffer, /) -> Any:
        """Decode a body.

        Raises:
            DecodeError: The decoder raised.
        """
        try:
            return self._decoder(bytes(data))
        except Exception as error:
            raise DecodeError(self.name, f"{type(error).__name__}: {error}") from error


class Connection:
    """A connection to an engine, in the place of aio_pika's; `connect_robust` makes one.

    Args:
        url: The URL of the engine; None is kiwiPy's default.
        **options: Options of the engine; or parts of an ``amqp://`` URL, as aio_pika has them: host, port, login, password,
            virtualhost, ssl.

    Attributes:
        close_callbacks: Functions that are called with (connection, exception) each time that the connection was lost or
            closed. The exception is None if it was closed here.

    Raises:
        ConfigError: There is no such engine, or option.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        if url is None:
            url, options = _url_of(options)
        self._url, self._options = EngineURL.parse(url), options
        self._engine: Engine | None = None
        # Made here, so that a wrong option is told at once.
        self._made: Engine | None = self._make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._order = asyncio.Lock()
        self.close_callbacks = Callbacks()

    def __str__(self) -> str:
        return str(self._url)

    def _make(self) -> Engine:
        return find_engine(self._url.scheme)(self._url, self._options)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which it is used."""
        return self._loop or asyncio.get_running_loop()

    @property
    def is_closed(self) -> bool:
        """True if it is not connected: not yet, or closed. Not while the engine reconnects."""
        return self._engine is None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RuntimeError: It is not connected.
        """
        if self._engine is None:
            raise RuntimeError("the communicator is not connected: call connect(), or use it as a context manager")
        return self._engine

    @property
    def server_properties(self) -> dict[str, Any]:
        """Properties in the place of RabbitMQ's: product, version and platform of redpoll, and name of the engine."""
        if self._engine is None:
            return {}
        return {
            "product": "redpoll",
            "version": version("redpoll"),
            "platform": f"Python {platform.python_version()}",
            "engine": self._engine.capabilities.engine,
        }

    async def connect(self) -> None:
        """Connect, on the running loop; again, if it was closed.

        Raises:
            DialFailed: The engine was not reached.
        """
        async with self._order:
            if self._engine is not None:
                return
            self._loop = asyncio.get_running_loop()
            engine, self._made = self._made or self._make(), None
            await engine.__aenter__()
            self._engine = engine
            engine.status.watch(self._changed)

    async def close(self) -> None:
        """Disconnect; tasks that are being worked on go back."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def _changed(self, state: EngineState, reason: str) -> None:
        if state is EngineState.CLOSED:
            self.close_callbacks.call(self, None)
        elif state is EngineState.RECONNECTING:
            self.close_callbacks.call(self, ConnectionError(reason))


class Callbacks:
    """Functions that are called when a connection is lost or closed."""

    def __init__(self) -> None:
        self._strong: set[Callable[..., object]] = set()
        self._weak: WeakSet[Callable[..., object]] = WeakSet()

    def add(self, callback: Callable[..., object], weak: bool = False) -> None:
        """Add one; a weak one only as long as something else refers to it."""
        (self._weak if weak else self._strong).add(callback)

    def call(self, sender: object, error: BaseException | None) -> None:
        """Call all of them; their exceptions are logged."""
        for callback in (*self._strong, *self._weak):
            try:
                callback(sender, error)
            except Exception:  # noqa: BLE001  # a callback may raise anything
                _log.exception("a close callback failed")


async def connect_robust(url: str | None = None, *, loop: object = None, **options: Any) -> Connection:  # noqa: ARG001
    """Connect. It reconnects by itself when it is lost.

    Args:
        url: As for `Connection`.
        loop: Ignored: it is the running loop.
        **options: As for `Connection`.

    Raises:
        ConfigError: There is no such engine, or option.
        DialFailed: The engine was not reached.
    """
    connection = Connection(url, **options)
    await connection.connect()
    return connection


def _url_of(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a URL of RabbitMQ for aio_pika's arguments, and the options beside them."""
    options = dict(given)
    parts = {
        name: options.pop(name) for name in ("host", "port", "login", "password", "virtualhost") if name in options
    }
    scheme = "amqps" if options.pop("ssl", False) else "amqp"
    if not parts and scheme == "amqp":
        return defaults.URL, options
    user, password = (quote(str(parts.get(name, "guest")), safe="") for name in ("login", "password"))
    host, port = parts.get("host", "127.0.0.1"), parts.get("port", _PORTS[scheme])
    return f"{scheme}://{user}:{password}@{host}:{port}/{quote(parts.get('virtualhost', '/'), safe='')}", options


@contextmanager
def kiwipy_errors(other: Any = kiwipy.DeliveryFailed) -> Generator[None]:
    """Raise kiwiPy's exceptions in place of redpoll's; those of values that cannot be, or be encoded, stay.

    Args:
        other: The exception for what is neither a closed communicator nor a message without a receiver.
    """
    try:
        yield
    except NoRoute as error:
        raise kiwipy.UnroutableError(str(error)) from error
    except Closed as error:
        raise kiwipy.CommunicatorClosed(str(error)) from error
    except (EncodeError, BadPayload, UsageError):
        raise
    except RedpollError as error:
        raise other(str(error)) from error


class Answer:
    """The watcher of a task or a call, and the future of its sender.

    Where a subscriber returns a future, the result is another future, as often as it does so.

    Args:
        payloads: The serializers.

    Attributes:
        future: The future of the outcome.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._loop = asyncio.get_running_loop()
        self.future = self._last = self._loop.create_future()

    def progress(self, envelope: Envelope) -> None:
        """Take the notice that the subscriber returned a future."""
        if NESTED in (envelope.meta or {}):
            last, self._last = self._last, self._loop.create_future()
            if not last.done():
                last.set_result(self._last)

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""
        future = self._last
        if future.done():
            return
        kind, envelope, detail = outcome
        if kind is OutcomeKind.CANCELLED:
            future.cancel()
        elif kind is OutcomeKind.RESULT:
            try:
                future.set_result(None if envelope is None else self._payloads.unpack(envelope))
            except BadPayload as error:
                future.set_exception(error)
        elif kind is OutcomeKind.ERROR and envelope is not None:
            future.set_exception(kiwipy.RemoteException(Failure.read(envelope).text))
        else:
            future.set_exception(kiwipy.RemoteException(detail or f"it ended as {kind.name}"))

    def gone(self, error: RedpollError) -> None:
        """Take the error for which there is no outcome."""
        if not self._last.done():
            closed = isinstance(error, Closed)
            self._last.set_exception((kiwipy.CommunicatorClosed if closed else kiwipy.DeliveryFailed)(str(error)))
            # Most programs that close do not look at what is still open.
            self._last.exception()


async def run_here(subscriber: Callable[..., Any], *args: Any) -> Any:
    """Call a subscriber on the loop; a coroutine is awaited, another awaitable is returned."""
    result = subscriber(*args)
    return await result if inspect.iscoroutine(result) else result


async def run(call: Call, progress: Callable[[Envelope], object], subscriber: Callable[..., Any], *args: Any) -> Any:
    """Call a subscriber, and wait for the future that it returns, and for the one that this results in, and so on.

    Args:
        call: Calls it.
        progress: Told of each future.
        subscriber: The subscriber.
        *args: Its arguments.
    """
    result = await call(subscriber, *args)
    depth = 0
    while asyncio.isfuture(result) or isinstance(result, concurrent.futures.Future):
        depth += 1
        progress(Envelope("", b"", {NESTED: depth}))
        result = await (result if asyncio.isfuture(result) else of_thread(result))
    return result
