"""Clients: a target whose methods are called like those of an object, with settings of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from functools import wraps
from typing import Any, Final, TypeVar, cast

from redpoll.bus.rpc.caller import Caller, Settings, Way
from redpoll.bus.rpc.replies import Stream
from redpoll.bus.rpc.target import Target, accepts
from redpoll.errors import UsageError

__all__ = ["Client", "typed_client"]

T = TypeVar("T")

_OF_TARGET: Final = frozenset({"exchange", "topic", "namespace", "version", "server", "fanout"})


_OF_CALLS: Final = frozenset(each.name for each in fields(Settings))


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

    def prepare(self, **changes: Any) -> Client:
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
            raise UsageError(f"a client has no setting {min(wrong)!r}")
        target = Target.of(self.target(**{name: changes[name] for name in changes.keys() & _OF_TARGET}))
        settings = replace(self.settings, **{name: changes[name] for name in changes.keys() & _OF_CALLS})
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

    def __call__(self, **args: Any) -> Coroutine[Any, Any, Any]:
        """Call it, and wait for its answer."""
        return self._call(self._way, args, self._settings)


def typed_client(client: Client, interface: type[T]) -> T:
    """Return an object with the asynchronous methods of a class, which calls those of a client's target.

    Asynchronous generators are streams. Arguments are bound to the signature here, so that they may be positional.

    Raises:
        UsageError: The class has no asynchronous methods.
    """
    methods: dict[str, Any] = {}
    for name, function in inspect.getmembers(interface, inspect.isfunction):
        if name.startswith("_"):
            continue
        if inspect.isasyncgenfunction(function):
            methods[name] = _bound(function, client.stream)
        elif inspect.iscoroutinefunction(function):
            methods[name] = _bound(function, client.call)
    if not methods:
        raise UsageError(f"{interface.__name__} has no asynchronous methods")
    made = type(f"{interface.__name__}Client", (), {**methods, "__doc__": interface.__doc__})
    return cast("T", made())


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
