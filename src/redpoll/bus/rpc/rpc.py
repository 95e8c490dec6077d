"""``bus.rpc``: calls by name, casts, messages to all servers of a topic, streamed replies; and servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, Final, TypeVar, Unpack, overload

from redpoll.bus.awaitables import close_all
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.rpc.caller import Caller, CallOptions, CallStats, Settings, check_times
from redpoll.bus.rpc.client import Client, ClientOptions, typed_client
from redpoll.bus.rpc.endpoints import AccessPolicy, Endpoints
from redpoll.bus.rpc.replies import Stream
from redpoll.bus.rpc.server import Server
from redpoll.bus.rpc.target import Target
from redpoll.bus.service import Service
from redpoll.checks import duration, integer, optional, require

__all__ = ["Rpc", "RpcOptions"]

T = TypeVar("T")

_POLICY: Final = AccessPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOptions:
    """The options of calls: ``connect(url, rpc=RpcOptions(timeout=5))``. Times are seconds.

    Raises:
        ConfigError: A field has a value that it cannot have.
    """

    timeout: float | None = 60.0
    """Until a call is answered, and a cast begun, unless it says otherwise. None: no limit."""

    retry: int | None = 0
    """The number of retries of a message that was not taken, unless it says otherwise. None: until its time is over."""

    concurrency: int = 64
    """Maximum running calls per queue of a server, unless it says otherwise."""

    drain: float | None = 30.0
    """For calls to end when a server is left. None: no limit."""

    policy: AccessPolicy = _POLICY
    """The policy that allows methods of endpoints."""

    allowed_exceptions: tuple[type[Exception] | str, ...] = ()
    """Exceptions of servers that are raised with their own types, beside Python's own: classes, and names of modules that are
    imported already. All others are `RemoteError`."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_times(self.timeout, self.retry)
        require("concurrency", self.concurrency, integer(1, 2**20))
        require("drain", self.drain, optional(duration))
        AllowedExceptions(self.allowed_exceptions)


class Rpc:
    """Calls, for both their ends: ``bus.rpc``.

    Where a target is wanted, text is a topic: the identifier that a server serves. Errors of calls, when awaited:

    - `NoRoute`: the target has no server; nothing was sent.
    - `CallTimeout`, a `TimeoutError`: no answer came in time; whether it was begun is not known.
    - `PeerLost`: the server that had begun the call is gone.
    - `RemoteError`, an exception of Python, or one that is allowed: the server's exception. It has the remote traceback.
    - `TaskCancelled`: the server cancelled it.

    Cancelling a call tells the server, which cancels the handler; so does the end of its time. What a handler calls has no
    more time than the handler, and carries the same headers (`use_headers`).

    Args:
        engine: The engine of the queues.
        payloads: The serializers.
        options: The options of calls.

    Attributes:
        options: The options of calls.
    """

    def __init__(self, engine: Engine, payloads: Payloads, options: RpcOptions) -> None:
        self.options = options
        self._engine = engine
        self._payloads = payloads
        self._caller = Caller(engine, payloads, AllowedExceptions(options.allowed_exceptions))
        self._settings = Settings(timeout=options.timeout, retry=options.retry)
        self._servers: set[Service] = set()

    @property
    def stats(self) -> dict[tuple[str, str], CallStats]:
        """The statistics, by title of the target and name of the method ("" is a message); of the last 10,000 of them."""
        return self._caller.stats

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop all servers, and wait some seconds for running calls; for the bus."""
        try:
            await close_all(server.close(drain) for server in tuple(self._servers))
        finally:
            await self._caller.close()

    @property
    def in_place(self) -> bool:
        """True if all servers receive calls, as far as the engine knows."""
        return all(server.in_place for server in self._servers)

    # -- serving

    def serve(
        self,
        target: Target | str,
        *endpoints: object,
        server: str | None = None,
        policy: AccessPolicy | None = None,
        concurrency: int | None = None,
        exclusive: bool = False,
        drain: float | EllipsisType | None = ...,
    ) -> Server:
        """Make a server: ``async with bus.rpc.serve("calculator", Calculator(), server="host-1"): ...``.

        Args:
            target: The target of its calls.
            *endpoints: Objects whose methods are called with keywords: coroutine functions on the loop, plain functions in
                threads, asynchronous generators for streams. Or functions that are handed messages. Tried in order; behind
                them stands a method ``ping``.
            server: Its own name among those that share the topic; several servers with one name share its calls.
            policy: The policy that allows methods; None is that of the options, as for the arguments below.
            concurrency: Calls at a time from each of its queues: the topic's, and that of its name.
            exclusive: Refuse to start beside another server of the topic, and let none start (`SpecConflict`).
            drain: Seconds for calls to end when its context is left; None is no limit.

        Raises:
            ConfigError: It has no topic, no endpoint, or a value cannot be.
        """
        options = self.options
        many = options.concurrency if concurrency is None else concurrency
        require("concurrency", many, integer(1, 2**20))
        return Server(
            self._engine,
            self._payloads,
            Target.of(target, server),
            Endpoints(endpoints, options.policy if policy is None else policy),
            concurrency=many,
            exclusive=exclusive,
            drain=options.drain if isinstance(drain, EllipsisType) else drain,
            running=self._servers,
        )

    # -- sending

    def call(
        self,
        target: Target | str,
        method: str | None = None,
        args: Any = None,
        *,
        server: str | None = None,
        **settings: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, Any]:
        """Call a method, and wait for its answer. It is begun at most once.

        Args:
            target: The addressee.
            method: Name of the method; None hands `args` to a function that is served.
            args: Its keywords as a mapping; or the message.
            server: This server only.
            **settings: Fields of `Settings`: timeout, retry, wait, mandatory, monitor, headers.

        Raises:
            ConfigError: A value cannot be.
            UsageError: The target is all servers.
            EncodeError: The arguments cannot be written (when awaited, as those of the class).
        """
        way = self._caller.way(target, method, server)
        way.require_one()
        return self._caller.call(way, _message(method, args), self._with(settings))

    def cast(
        self,
        target: Target | str,
        method: str | None = None,
        args: Any = None,
        *,
        server: str | None = None,
        **settings: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, None]:
        """Call a method without an answer; done when a queue has it. It is begun at most once.

        The arguments are those of `call`. A target that is all servers is a `fanout`.
        """
        return self._caller.cast(self._caller.way(target, method, server), _message(method, args), self._with(settings))

    def fanout(
        self,
        target: Target | str,
        method: str | None = None,
        args: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Call a method of every server of the topic that there is now, without answers; best effort.

        The arguments are those of `call`.
        """
        way = self._caller.way(target, method)
        return self._caller.fanout(way, _message(method, args), self._with({"headers": headers}))

    def stream(
        self,
        target: Target | str,
        method: str | None = None,
        args: Any = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        wait: float = 0.0,
        headers: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Call a method that is an asynchronous generator, and take its values as they come.

        The arguments are those of `call`; `timeout` is for all of it, and None (default) is no limit.
        """
        way = self._caller.way(target, method, server)
        way.require_one()
        return self._caller.stream(
            way, _message(method, args), self._with({"timeout": timeout, "wait": wait, "headers": headers})
        )

    @overload
    def client(self, target: Target | str, /, **settings: Unpack[ClientOptions]) -> Client: ...

    # Not type[T]: mypy takes no protocol for that.
    @overload
    def client(self, target: Target | str, interface: Callable[..., T], /, **settings: Unpack[ClientOptions]) -> T: ...

    def client(
        self, target: Target | str, interface: Callable[..., T] | None = None, /, **settings: Unpack[ClientOptions]
    ) -> Client | T:
        """A client: ``calculator = bus.rpc.client("calculator", timeout=3); await calculator.add(a=1, b=2)``.

        Args:
            target: The addressee.
            interface: A class whose asynchronous methods the client has: with their signatures, checked for types. It may be
                the class that is served, or one with the same methods that do nothing, in which a stream is an asynchronous
                generator or is annotated to return an `AsyncIterator`.
            **settings: Fields of `Settings`, and of its target: those of `Client.prepare`.

        Raises:
            ConfigError: A value cannot be.
            UsageError: There is no such setting.
        """
        client = Client(self._caller, Target.of(target), self._settings).prepare(**settings)
        return client if interface is None else typed_client(client, interface)

    def _with(self, settings: CallOptions) -> Settings:
        """The settings of the bus, with some changed."""
        return replace(self._settings, **settings) if settings else self._settings


def _message(method: str | None, args: Any) -> Any:
    return {} if args is None and method is not None else args
