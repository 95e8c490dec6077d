"""The blocking face of a bus, made awaitable, so that one behaviour is written for both."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from enum import Enum
from typing import Any, Final, Self

__all__ = ["Awaited", "Call", "Signal", "begin"]

_PLAIN: Final = (str, bytes, int, float, tuple, list, dict, set, Enum, BaseException, type(None))
_END: Final = object()
#: Methods that the asynchronous face calls at once as well.
_AT_ONCE: Final = frozenset(
    {"set_result", "set_exception", "requeue", "reject", "dead_letter", "on_progress", "bind", "post"}
)
#: Methods that make an object at once on either face; the object has an awaitable face.
_MAKERS: Final = frozenset(
    {
        "can_send_version",
        "chain",
        "client",
        "group",
        "handle",
        "listen",
        "notifier",
        "prepare",
        "serve",
        "stream",
        "subscribe",
        "then",
        "worker",
    }
)


def _wrap(value: Any) -> Any:
    """A plain value as it is, anything else with an awaitable face."""
    if type(value) is list:
        return [_wrap(each) for each in value]
    return value if isinstance(value, _PLAIN) or dataclasses.is_dataclass(value) else Awaited(value)


def _unwrap(value: Any) -> Any:
    """An object itself, where it has an awaitable face, also in a list."""
    return [_unwrap(each) for each in value] if type(value) is list else getattr(value, "_target", value)


class Awaited:
    """An object that blocks, as if it were the asynchronous one: its calls are awaited, and made in a thread.

    Args:
        target: The object.
    """

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name in _AT_ONCE or (name == "watch" and hasattr(self._target, "wait_for")):
            return value
        if name in _MAKERS:
            return lambda *args, **kwargs: _wrap(value(*map(_unwrap, args), **kwargs))
        return _wrap(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Call:
        """Call it, once that is awaited or entered."""
        return Call(lambda: self._target(*args, **kwargs))

    async def __aenter__(self) -> Any:
        return _wrap(await _in_thread(self._target.__enter__))

    async def __aexit__(self, *exc_info: object) -> Any:
        return await _in_thread(self._target.__exit__, *exc_info)

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        found = await _in_thread(next, self._target, _END)
        if found is _END:
            raise StopAsyncIteration
        return _wrap(found)


class Call:
    """A call that was not made yet. It is made in a thread; a future of `concurrent.futures` is awaited.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._entered: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the result, with an awaitable face."""
        return self._run().__await__()

    async def __aenter__(self) -> Any:
        self._entered = await self
        return await self._entered.__aenter__()

    async def __aexit__(self, *exc_info: object) -> Any:
        return await self._entered.__aexit__(*exc_info)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over what the call returns."""
        made = await self
        async for each in made:
            yield each

    async def _run(self) -> Any:
        result = await _in_thread(self._make)
        if isinstance(result, concurrent.futures.Future):
            result = await asyncio.wrap_future(result)
        return _wrap(result)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread, and raise what it raises; a future would make other errors of some."""

    def called() -> tuple[Any, Exception | None]:
        try:
            return function(*args), None
        except Exception as error:  # noqa: BLE001  # it is raised below
            return None, error

    result, error = await asyncio.to_thread(called)
    if error is not None:
        raise error
    return result


def begin(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
    """Begin a verb of either face before anything else happens; cancelling what is returned cancels it.

    Args:
        verb: The verb. Of the blocking face its ``future`` is used.
        *args: Its arguments.
        **kwargs: Its keywords.
    """
    if isinstance(verb, Awaited):
        begun: concurrent.futures.Future[Any] = verb._target.future(*args, **kwargs)
        return asyncio.wrap_future(begun)
    awaited: Awaitable[Any] = verb(*args, **kwargs)
    return asyncio.ensure_future(awaited)


class Signal:
    """As `asyncio.Event`, for tasks of several loops in several threads: a handler's is not always the behaviour's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiters: list[concurrent.futures.Future[None]] = []

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait; nobody waits until it is cleared."""
        with self._lock:
            self._is_set = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            with suppress(concurrent.futures.InvalidStateError):  # its task was cancelled
                waiter.set_result(None)

    def clear(self) -> None:
        """Let tasks wait again."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set."""
        waiter: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self._is_set:
                return
            self._waiters.append(waiter)
        await asyncio.wrap_future(waiter)
