"""The bus of a process, for programs and libraries whose threads call it and whose processes fork."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from redpoll.blocking.verbs import ask, wait
from redpoll.bus.awaitables import future_of
from redpoll.bus.bus import Bus, connect
from redpoll.errors import Closed
from redpoll.locks import check_not_held
from redpoll.platforms import after_fork

if TYPE_CHECKING:
    from redpoll.bus.threads.resident import BusResident

__all__ = ["ProcessBus"]

P = ParamSpec("P")
R = TypeVar("R")
SideT = TypeVar("SideT")


class ProcessBus(Generic[SideT]):
    """A bus that connects when it is first used, and anew in a forked child.

    Args:
        url: The URL of the engine; one that begins with ``redpoll+`` names another engine behind it.
        side: Makes the object that does the work on the event loop, given the bus.
        **options: The options of `redpoll.connect`.
    """

    def __init__(self, url: str, side: Callable[[Bus], SideT], **options: Any) -> None:
        self._url = url.removeprefix("redpoll+")
        self._make = side
        self._options = options
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """Begin anew, in a forked child: what it inherits is left as it is, and another thread may have held the lock."""
        self._lock = threading.RLock()
        self._entered: tuple[BusResident, SideT] | None = None

    def enter(self) -> tuple[BusResident, SideT]:
        """Return the way to the event loop, and the object there; connect if that was not done yet.

        Raises:
            DialFailed: The engine was not reached in time, where ``wait=True`` is not among the options.
            ConfigError: The URL or an option cannot be.
            UsageError: A signal handler or a finalizer interrupted this thread while it connected.
        """
        entered = self._entered
        if entered is None:
            check_not_held(self._lock)
            with self._lock:
                entered = self._entered
                if entered is None:
                    # Imported where it is used: apps on a loop need no thread.
                    from redpoll.bus.threads.resident import BusResident

                    home = BusResident(connect(self._url, **self._options))
                    home.enter()
                    entered = self._entered = (home, self._make(home.bus))
        return entered

    @property
    def entered(self) -> bool:
        """True if this process has connected."""
        return self._entered is not None

    @property
    def is_here(self) -> bool:
        """True on the event loop of this process's bus."""
        entered = self._entered
        return entered is not None and entered[0].handover.is_here

    def run(self, method: Callable[Concatenate[SideT, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a coroutine method of the object on the loop, and wait for its result; Ctrl-C cancels it."""
        home, side = self.enter()
        return wait(home, lambda: method(side, *args, **kwargs))

    def ask(self, method: Callable[Concatenate[SideT, P], Awaitable[Any]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Same as `run`, for a plain method, whose awaitable is not awaited by a task; without the result."""
        home, side = self.enter()
        ask(home, lambda: future_of(method(side, *args, **kwargs)))

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a plain function on the loop, soon, where this process is connected; its exceptions are logged."""
        entered = self._entered
        if entered is not None:
            with suppress(Closed):
                entered[0].handover.post(function, args)

    def close(self, drain: float = 0.0) -> None:
        """Disconnect; the next use connects again. In a forked child, what was inherited is left alone.

        Args:
            drain: Seconds to wait for open deliveries.

        Raises:
            UsageError: A signal handler or a finalizer interrupted this thread while it connected.
        """
        check_not_held(self._lock)
        with self._lock:
            entered, self._entered = self._entered, None
        if entered is not None:
            entered[0].close(drain)


_all: weakref.WeakSet[ProcessBus[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    # Here, as a child has one thread yet: two that noticed it later would each begin anew.
    for each in _all:
        each.renew()


after_fork(_after_fork)
