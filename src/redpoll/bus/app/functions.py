"""The beginning of decorated functions: themselves when they are called, and what they share with the others of an app."""

from __future__ import annotations

import atexit
import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar

from redpoll.bus.app.middleware import Middleware, Proceed, chain
from redpoll.bus.app.shapes import Extra, Shape
from redpoll.bus.bus import Bus
from redpoll.bus.process_bus import ProcessBus
from redpoll.checks import is_async
from redpoll.errors import ConfigError, UsageError

__all__ = ["AppState", "Function"]

P = ParamSpec("P")
#: The result, and what a call of the function itself returns: a coroutine of that, or the same.
R = TypeVar("R")
C = TypeVar("C")


class AppState:
    """The state that the functions of an app share.

    Args:
        middleware: The middleware of the app.
        extra: The fate of arguments that a function does not have.
        url: The bus.
        options: Its options.

    Attributes:
        bus: The bus, while the app is started.
        threads: The bus of threads without a loop, which is connected when it is used first.
    """

    def __init__(self, middleware: Iterable[Middleware], extra: Extra, url: str, options: Mapping[str, Any]) -> None:
        self.middleware = list(middleware)
        for each in self.middleware:
            if not isinstance(each, Middleware):
                raise ConfigError("middleware", each, "must be objects of subclasses of Middleware")
        self.extra = extra
        self.bus: Bus | None = None
        self.threads = ProcessBus(url, self._close_at_exit, **options)

    def connected(self) -> Bus:
        """Return the bus: that of threads on its own loop, the one of `App.start` elsewhere.

        Raises:
            UsageError: The app is not started.
        """
        if self.threads.is_here:
            return self.threads.enter()[1]
        if self.bus is None:
            raise UsageError("the app is not started", "async with app: ..., or app.wait(…) without a loop")
        return self.bus

    def _close_at_exit(self, bus: Bus) -> Bus:
        atexit.register(self.threads.close)
        return bus

    def leave(self) -> None:
        """Close the bus of threads, if there is one here."""
        atexit.unregister(self.threads.close)
        self.threads.close()

    @property
    def text(self) -> bool:
        """True if the serializer of the bus has no bytes."""
        return self.connected().payloads.writer == "json"


class Function(Generic[P, R, C]):
    """A function of an app. It is called as the function that it is.

    Args:
        state: The state that it shares with the others.
        function: The function.
        name: Its name.
        title: Its name with its queue or target.

    Attributes:
        function: The function.
        name: Its name.
        title: Its name with its queue or target.
        declared: True if it is known by its signature alone.
        options: The options with which it is submitted or called.
    """

    __name__: str

    def __init__(self, state: AppState, function: Callable[..., Any], name: str, title: str) -> None:
        functools.update_wrapper(self, function)
        self._state = state
        self.function = function
        self.name = name
        self.title = title
        self.declared = False
        self.options: Any = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function itself, here."""
        found: C = self.function(*args, **kwargs)
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title!r}>"

    @functools.cached_property
    def shape(self) -> Shape:
        """Its arguments and its result, read when they are used first: annotations may name what stands behind it."""
        return Shape(self.function, self.title, self._state.extra)

    @functools.cached_property
    def is_async(self) -> bool:
        """True if it is a coroutine function."""
        return is_async(self.function)

    def _submitting(self, last: Proceed) -> Proceed:
        return chain(self._state.middleware, "submit", last) if self._state.middleware else last

    def _with(self, options: Mapping[str, Any], kind: type) -> Self:
        """Return the same function with more options, of a kind of typed dict."""
        unknown = sorted(options.keys() - kind.__annotations__.keys())
        if unknown:
            known = ", ".join(kind.__annotations__)
            raise TypeError(f"{self.title} has no option {unknown[0]!r}, only {known}")
        made = copy.copy(self)
        made.options = {**self.options, **options}
        return made
