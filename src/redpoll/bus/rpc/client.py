"""Clients: a target whose methods are called like those of an object, with settings of its own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from dataclasses import fields, replace
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any, Final, NoReturn, Unpack, get_origin, get_type_hints

from redpoll.bus.rpc.caller import Caller, CallOptions, Settings, Way
from redpoll.bus.rpc.replies import Stream
from redpoll.bus.rpc.target import Target, accepts
from redpoll.errors import UsageError

__all__ = ["Client", "ClientOptions", "keywords_only", "typed_client"]

_OF_TARGET: Final = frozenset({"exchange", "topic", "namespace", "version", "server", "fanout"})


_OF_CALLS: Final = frozenset(each.name for each in fields(Settings))
_STREAMS: Final = (AsyncGenerator, AsyncIterable, AsyncIterator)


class ClientOptions(CallOptions, total=False):
    """Fields of `Settings` and of `Target` that a client can have as keywords."""

    version_cap: str | None
    topic: str
    server: str | None
    exchange: str | None
    namespace: str | None
    version: str | None
    fanout: bool | None


class Client:
    """Calls the methods of a target: ``await calculator.add(a=1, b=2)``. Made by ``bus.rpc.client``.

    Methods that are named like one of the client itself are called by `call`.

    Args:
        caller: The sender.
        target: The target.
        settings: The settings of its calls.

    Attributes:
        target: The target.
        settings: The settings of its calls.
    """

    def __init__(self, caller: Caller, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self._caller = caller

    def __repr__(self) -> str:
        return f"<Client of {self.target.title!r}>"

    def prepare(self, **changes: Unpack[ClientOptions]) -> Client:
        """Return a client with other settings, or for another target; None is a value as well.

        Args:
            **changes: Fields of `Settings` and of `Target`: timeout, retry, wait, mandatory, monitor, headers,
                version_cap; topic, server, exchange, namespace, version, fanout.

        Raises:
            ConfigError: A value cannot be.
            UsageError: There is no such field.
        """
        wrong = changes.keys() - _OF_CALLS - _OF_TARGET
        if wrong:
            known = ", ".join(sorted(_OF_CALLS | _OF_TARGET))
            raise UsageError(f"a client has no setting {min(wrong)!r}", f"it has {known}")
        given: dict[str, Any] = {**changes}
        target = Target.of(self.target(**{name: given[name] for name in given.keys() & _OF_TARGET}))
        settings = replace(self.settings, **{name: given[name] for name in given.keys() & _OF_CALLS})
        return Client(self._caller, target, settings)

    def can_send_version(self, version: str | None = None) -> bool:
        """Return True if the cap allows a version; None is that of the target."""
        cap = self.settings.version_cap
        wanted = version or self.target.version
        return cap is None or (wanted is not None and accepts(cap, wanted))

    def call(self, method: str, /, **args: Any) -> Coroutine[Any, Any, Any]:
        """Call a method, and wait for its answer. See `Rpc.call`.

        Raises:
            UsageError: The cap does not allow the version, or the target is all servers.
        """
        return _Remote(self, method)(**args)

    def cast(self, method: str, /, **args: Any) -> Coroutine[Any, Any, None]:
        """Call a method without an answer; of all servers, where that is the target. See `Rpc.cast`.

        Raises:
            UsageError: The cap does not allow the version.
        """
        return self._caller.cast(self._way(method), args, self.settings)

    def fanout(self, method: str, /, **args: Any) -> Coroutine[Any, Any, None]:
        """Call a method of all servers, without answers. See `Rpc.fanout`.

        Raises:
            UsageError: The cap does not allow the version.
        """
        return self._caller.fanout(self._way(method), args, self.settings)

    def stream(self, method: str, /, **args: Any) -> Stream:
        """Call a method that streams; without a limit of time. See `Rpc.stream`.

        Raises:
            UsageError: The cap does not allow the version, or the target is all servers.
        """
        way = self._way(method)
        way.require_one()
        return self._caller.stream(way, args, replace(self.settings, timeout=None))

    def _way(self, method: str) -> Way:
        if not self.can_send_version():
            raise UsageError(
                f"version {self.target.version} of {self.target.title!r} is above the cap of {self.settings.version_cap}"
            )
        return self._caller.way(self.target, method)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A method of the target."""
        if name.startswith("_"):
            raise AttributeError(name)
        method = self.__dict__[name] = _Remote(self, name)
        return method


class _Remote:
    """A method of a target."""

    def __init__(self, client: Client, method: str) -> None:
        self._way = client._way(method)  # a part of it
        self._way.require_one()
        self._call = client._caller.call
        self._settings = client.settings

    def __call__(self, *wrong: Any, **args: Any) -> Coroutine[Any, Any, Any]:
        """Call it, and wait for its answer.

        Raises:
            TypeError: There are positional arguments.
        """
        if wrong:
            raise keywords_only(self._way.method)
        return self._call(self._way, args, self._settings)


def keywords_only(method: str) -> TypeError:
    """Return the error of a call with positional arguments."""
    return TypeError(
        f"{method}() takes keyword arguments; those of a typed client, client(target, Class), have positions"
    )


def typed_client(client: Client, interface: Any) -> Any:
    """Return an object with the asynchronous methods of a class, which calls those of a client's target.

    Asynchronous generators are streams, and so are methods annotated to return an `AsyncIterator`. Arguments are bound to the
    signature here, so that they may be positional. Other methods raise `UsageError`.

    Raises:
        UsageError: The class has no asynchronous methods.
    """
    methods: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, function in inspect.getmembers(interface, inspect.isfunction):
        if name.startswith("_"):
            continue
        if _is_stream(function):
            methods[name] = _bound(function, client.stream)
        elif inspect.iscoroutinefunction(function):
            methods[name] = _bound(function, client.call)
        else:
            others[name] = _refused(function)
    if not methods:
        raise UsageError(f"{interface.__name__} has no asynchronous methods", "declare them with async def")
    made = type(f"{interface.__name__}Client", (), {**others, **methods, "__doc__": interface.__doc__})
    return made()


def _is_stream(function: FunctionType) -> bool:
    if inspect.isasyncgenfunction(function):
        return True
    if inspect.iscoroutinefunction(function):
        return False
    # Names of its arguments may be imported for type checkers alone.
    alone = SimpleNamespace(__annotations__={"return": inspect.get_annotations(function).get("return")})
    try:
        returned = get_type_hints(alone, function.__globals__)["return"]
    except Exception:  # noqa: BLE001  # whatever the text of an annotation raises
        return False
    return (get_origin(returned) or returned) in _STREAMS


def _refused(function: Callable[..., Any]) -> Callable[..., NoReturn]:
    @wraps(function)
    def method(*_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            f"{function.__qualname__} is a plain function, and a typed client has asynchronous methods",
            "declare it with async def in the class of the client, or call it by name",
        )

    return method


def _bound(function: Callable[..., Any], send: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(list(signature.bind(*args, **kwargs).arguments.items())[1:])
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return send(function.__name__, **arguments)

    return method
