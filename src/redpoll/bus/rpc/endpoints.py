"""Endpoints: the methods of a server, and the policies that allow them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from redpoll.bus.rpc.target import Target, accepts
from redpoll.checks import is_async
from redpoll.errors import ConfigError, RemoteError

__all__ = [
    "AccessPolicy",
    "Endpoints",
    "ExplicitAccessPolicy",
    "LegacyAccessPolicy",
    "Method",
    "MethodKind",
    "expected_exceptions",
    "expose",
]

F = TypeVar("F", bound=Callable[..., Any])

_EXPOSED: Final = "_redpoll_exposed"
_EXPECTED: Final = "_redpoll_expected"
_DEFAULT_VERSION: Final = "1.0"


def expose(function: F) -> F:
    """Mark a method as one that may be called, for `ExplicitAccessPolicy`."""
    setattr(function, _EXPOSED, True)
    return function


def expected_exceptions(*kinds: type[Exception]) -> Callable[[F], F]:
    """Mark a method as one that raises exceptions of these types, and their subclasses, as a part of its interface.

    They reach the caller without a traceback, and are logged at DEBUG only.
    """

    def mark(function: F) -> F:
        setattr(function, _EXPECTED, kinds)
        return function

    return mark


class AccessPolicy:
    """Allows methods of endpoints: all with names that do not begin with an underscore.

    A subclass decides otherwise. It is asked once for each method, when the server is made.
    """

    def is_allowed(self, endpoint: object, method: str) -> bool:  # noqa: ARG002  # subclasses look at it
        """Return True if a method may be called."""
        return not method.startswith("_")


class LegacyAccessPolicy(AccessPolicy):
    """All methods may be called, those with an underscore too."""

    def is_allowed(self, endpoint: object, method: str) -> bool:  # noqa: ARG002
        """Return True."""
        return True


class ExplicitAccessPolicy(AccessPolicy):
    """Only methods that are marked by `expose` may be called."""

    def is_allowed(self, endpoint: object, method: str) -> bool:
        """Return True if the method is marked."""
        return getattr(inspect.getattr_static(endpoint, method, None), _EXPOSED, False) is True


class MethodKind(Enum):
    """The ways to run a method."""

    #: A coroutine function: on the loop.
    COROUTINE = 1
    #: A plain function: in a thread.
    PLAIN = 2
    #: An asynchronous generator function: on the loop, its values are streamed.
    STREAM = 3


class Method(NamedTuple):
    """A function that is served.

    Attributes:
        function: The function, which takes keywords; or a message, where it is an endpoint itself.
        kind: The way to run it.
        expected: Exceptions that are a part of its interface.
        keywords: True if it takes keywords.
    """

    function: Callable[..., Any]
    kind: MethodKind
    expected: tuple[type[Exception], ...]
    keywords: bool

    @classmethod
    def of(cls, function: Callable[..., Any], *, keywords: bool) -> Method:
        """Look at a function."""
        kind = MethodKind.PLAIN
        if inspect.isasyncgenfunction(function):
            kind = MethodKind.STREAM
        elif is_async(function):
            kind = MethodKind.COROUTINE
        return cls(function, kind, getattr(function, _EXPECTED, ()), keywords)


class _Endpoint(NamedTuple):
    namespaces: frozenset[str | None]
    version: str
    methods: dict[str | None, Method]


class _Ping:
    async def ping(self) -> str:
        """Answer, and show that calls are served."""
        return "pong"


class Endpoints:
    """The endpoints of a server.

    Args:
        endpoints: Objects, whose methods are called; and functions, which are handed messages. They are tried in order.
            The attribute `target` of an object says its namespaces and its version.
        policy: The policy that allows methods.

    Attributes:
        plain: The methods for calls that name neither namespace nor version.

    Raises:
        ConfigError: There is none; a class or a plain value instead of an object; or a `target` that is no `Target`.
    """

    def __init__(self, endpoints: Sequence[object], policy: AccessPolicy) -> None:
        if not isinstance(policy, AccessPolicy):
            raise ConfigError("policy", policy, "must be an AccessPolicy")
        if not endpoints:
            raise ConfigError("endpoints", endpoints, "must not be empty")
        self._endpoints = [_look_at(each, policy) for each in endpoints]
        self._endpoints.append(_look_at(_Ping(), AccessPolicy()))
        self.plain: dict[str | None, Method] = {}
        for endpoint in self._matching(None, _DEFAULT_VERSION):
            for name, method in endpoint.methods.items():
                self.plain.setdefault(name, method)

    def find(self, method: str | None, namespace: str | None, version: str | None) -> Method:
        """Return the method of a call.

        Raises:
            RemoteError: There is none; its kind is "NoSuchMethod" or "UnsupportedVersion".
        """
        if namespace is None and version is None:
            found = self.plain.get(method)
            if found is not None:
                return found
        wanted = version or _DEFAULT_VERSION
        candidates = list(self._matching(namespace, wanted))
        for endpoint in candidates:
            if method in endpoint.methods:
                return endpoint.methods[method]
        if not candidates:
            raise RemoteError("UnsupportedVersion", f"namespace {namespace!r}, version {wanted!r}")
        raise RemoteError("NoSuchMethod", "no endpoint takes messages" if method is None else repr(method))

    def _matching(self, namespace: str | None, version: str) -> Iterator[_Endpoint]:
        return (each for each in self._endpoints if namespace in each.namespaces and accepts(each.version, version))


def _look_at(endpoint: object, policy: AccessPolicy) -> _Endpoint:
    if inspect.isclass(endpoint):
        raise ConfigError("endpoints", endpoint, "is a class", "pass an instance")
    if inspect.isroutine(endpoint):
        message = Method.of(endpoint, keywords=False)
        return _Endpoint(frozenset({None}), _DEFAULT_VERSION, {None: message})
    if type(endpoint).__module__ == "builtins":
        wanted = "must be an object with methods, or a function that takes messages"
        raise ConfigError("endpoints", endpoint, f"{wanted}, not {type(endpoint).__name__}")
    target = getattr(endpoint, "target", None)
    if target is None:
        target = Target()
    elif not isinstance(target, Target):
        raise ConfigError("target", target, "of an endpoint must be a Target")
    methods: dict[str | None, Method] = {}
    for name in dir(endpoint):
        # Not getattr(): a property is not to be called.
        if name.startswith("__") or not _is_method(inspect.getattr_static(endpoint, name, None)):
            continue
        if policy.is_allowed(endpoint, name):
            methods[name] = Method.of(getattr(endpoint, name), keywords=True)
    return _Endpoint(
        frozenset({target.namespace, *target.legacy_namespaces}), target.version or _DEFAULT_VERSION, methods
    )


def _is_method(found: object) -> bool:
    return inspect.isroutine(found) or isinstance(found, staticmethod | classmethod)
