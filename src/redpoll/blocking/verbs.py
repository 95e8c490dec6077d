"""Methods for threads that call coroutine methods of an object on the loop: they wait, or return a future."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from redpoll.blocking.handover import Call, Handover
from redpoll.errors import Closed, UsageError

__all__ = [
    "Attribute",
    "BoundVerb",
    "Face",
    "OnLoopThread",
    "Verb",
    "ask",
    "call",
    "handover_to_wait",
    "maker",
    "verb",
    "wait",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TargetT_co = TypeVar("TargetT_co", covariant=True)


class OnLoopThread(Protocol):
    """The resident of the loop thread through which calls are made."""

    @property
    def name(self) -> str:
        """Its name, for errors."""
        ...

    @property
    def handover(self) -> Handover:
        """The way to the loop.

        Raises:
            Closed: It is not running.
            UsageError: This is a forked child.
        """
        ...


class _Call(Call):
    """The future of a verb; cancelling it cancels the coroutine."""

    def __init__(self, home: OnLoopThread, handover: Handover, undo: Callable[[Any], object] | None) -> None:
        super().__init__(handover)
        self.context = contextvars.copy_context()
        self.undo = undo
        self._name = home.name

    def fail(self, error: BaseException) -> None:
        """End with the error of the call, or the reason why it was not made."""
        super().fail(Closed(self._name) if isinstance(error, Closed) and error.what == "node" else error)

    def cancel(self) -> bool:
        """Cancel it; return False if it has ended."""
        if not super().cancel():
            return False
        if self.task is None or not self.task.done():
            self._handover.post(self._cancel_task)
        return True

    def _cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()


def handover_to_wait(home: OnLoopThread) -> Handover:
    """Return the way to the loop for a thread that is going to wait.

    Raises:
        Closed: It is not running.
        UsageError: This is the loop's thread, or a forked child.
    """
    handover = home.handover
    if handover.is_here:
        raise UsageError(
            f"this would block the thread of the event loop, which does the work of this {home.name}",
            "coroutine functions and callbacks of futures run there: use .future(), or another thread",
        )
    return handover


def ask(home: OnLoopThread, function: Callable[..., asyncio.Future[R]], *args: Any) -> R:
    """Call a plain function on the loop, and wait for the future that it returns, which Ctrl-C cancels.

    No task is made, which takes turns of the loop to begin and to end.
    """
    handover = handover_to_wait(home)
    asked = _Call(home, handover, None)
    asked.awaits = True
    result: R = handover.wait_for(asked, None, function, *args)
    return result


def call(home: OnLoopThread, function: Callable[..., R], *args: Any) -> R:
    """Call a plain function on the loop and wait for it; on the loop's own thread, call it directly."""
    handover = home.handover
    if handover.is_here:
        return function(*args)
    result: R = handover.wait_for(_Call(home, handover, None), None, function, *args)
    return result


def wait(
    home: OnLoopThread,
    method: Callable[..., Awaitable[R]],
    *args: Any,
    undo: Callable[[R], object] | None = None,
) -> R:
    """Call a coroutine function on the loop, in the caller's context, and wait for the result.

    Args:
        home: The resident.
        method: The function.
        *args: Its arguments.
        undo: Called on the loop with a result that was not delivered because the thread was interrupted.
    """
    handover = handover_to_wait(home)
    result: R = handover.wait_for(_Call(home, handover, undo), None, _perform, method, args, {}, None)
    return result


async def _perform(
    method: Callable[..., Awaitable[Any]], args: Any, kwargs: Any, wrap: Callable[[Any], Any] | None
) -> Any:
    result = await method(*args, **kwargs)
    return result if wrap is None else wrap(result)


class Face(Generic[TargetT_co]):
    """The face for threads of an object on the loop.

    Args:
        home: The resident that runs it.
        target: The object.
    """

    def __init__(self, home: OnLoopThread, target: TargetT_co) -> None:
        self._home = home
        self._target = target

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"


class Attribute(Generic[T]):
    """An attribute of a `Face`, read from the attribute of the same name of the object on the loop."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Face[Any], owner: type) -> T: ...

    def __get__(self, face: Face[Any] | None, owner: type) -> Self | T:
        """Return the attribute of the object."""
        if face is None:
            return self
        found: T = getattr(face._target, self._name)
        return found


class BoundVerb(Generic[P, T]):
    """A verb of one object: calling it waits; Ctrl-C cancels it."""

    __slots__ = ("_face", "_verb")

    def __init__(self, face: Face[Any], verb: Verb[P, T]) -> None:
        self._face = face
        self._verb = verb

    def __repr__(self) -> str:
        return f"<{self._verb.__name__} of {self._face!r}>"

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._verb.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._verb.of(self._face))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the method, and wait for its result.

        Raises:
            UsageError: This is the thread of the event loop.
        """
        home = self._face._home
        it = self._verb
        result: T
        if it.known is not None and it.known(self._face._target):
            result = it.at_once(self._face, *args, **kwargs)
            return result
        handover = handover_to_wait(home)
        result = handover.wait_for(
            _Call(home, handover, it.undo), None, _perform, it.of(self._face), args, kwargs, it.wrap_for(home)
        )
        return result

    def future(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the method without waiting, from any thread.

        Returns:
            A `concurrent.futures.Future`; cancelling it cancels the call. Its callbacks are called on the thread of the
            event loop: they must return soon, and methods that wait raise `UsageError` there.
        """
        home = self._face._home
        handover = home.handover
        it = self._verb
        future = _Call(home, handover, it.undo)
        handover.begin(future, _perform, it.of(self._face), args, kwargs, it.wrap_for(home))
        return future


class Verb(Generic[P, T]):
    """A method of a `Face` that calls a coroutine method: see `verb`."""

    def __init__(
        self,
        method: Callable[..., Any],
        wrap: Callable[[Any, Any], Any] | None,
        undo: Callable[[Any], object] | None,
        known: Callable[[Any], bool] | None,
    ) -> None:
        self.__doc__ = method.__doc__
        self.__name__ = method.__name__
        self.undo = undo
        self.known = known
        self._wrap = wrap

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Face[Any], owner: type) -> BoundVerb[P, T]: ...

    def __get__(self, face: Face[Any] | None, owner: type) -> Self | BoundVerb[P, T]:
        """The verb of one object."""
        return self if face is None else BoundVerb(face, self)

    def of(self, face: Face[Any]) -> Callable[..., Any]:
        """The method of the object on the loop."""
        method: Callable[..., Any] = getattr(face._target, self.__name__)
        return method

    def at_once(self, face: Face[Any], *args: Any, **kwargs: Any) -> Any:
        """Call the method where it waits for nothing: no loop is needed, and there may be none any more."""
        coroutine = _perform(self.of(face), args, kwargs, self.wrap_for(face._home))
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        finally:
            coroutine.close()
        raise UsageError(f"{self.__name__} waits for the event loop")

    def wrap_for(self, home: OnLoopThread) -> Callable[[Any], Any] | None:
        """Return the function that converts results for threads, or None."""
        wrap = self._wrap
        return None if wrap is None else lambda result: wrap(home, result)


@overload
def verb(method: Callable[Concatenate[Any, P], Awaitable[T]], /) -> Verb[P, T]: ...


@overload
def verb(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
    wrap: Callable[[Any, R], T],
    /,
    *,
    undo: Callable[[T], object] | None = None,
    known: Callable[[Any], bool] | None = None,
) -> Verb[P, T]: ...


def verb(
    method: Callable[..., Any],
    wrap: Callable[[Any, Any], Any] | None = None,
    /,
    *,
    undo: Callable[[Any], object] | None = None,
    known: Callable[[Any], bool] | None = None,
) -> Verb[Any, Any]:
    """Make a method for threads of a coroutine method, with its name and signature.

    Args:
        method: The function of the class on the loop.
        wrap: Called on the loop: converts the home and the result into the value for threads.
        undo: Called on the loop with a result that was not delivered: the thread was interrupted, or the future cancelled.
        known: Returns True of an object whose method waits for nothing any more; it is called in the caller's thread then.
    """
    return Verb(method, wrap, undo, known)


class _Maker(Generic[P, T]):
    def __init__(self, method: Callable[..., Any], wrap: Callable[[Any, Any], Any], on_loop: bool) -> None:
        self.__doc__ = method.__doc__
        self._name: Final = method.__name__
        self._wrap = wrap
        self._on_loop = on_loop

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Face[Any], owner: type) -> Callable[P, T]: ...

    def __get__(self, face: Face[Any] | None, owner: type) -> Self | Callable[P, T]:
        """The function of one object."""
        if face is None:
            return self
        home = face._home
        method = getattr(face._target, self._name)

        def make(*args: P.args, **kwargs: P.kwargs) -> T:
            made = call(home, lambda: method(*args, **kwargs)) if self._on_loop else method(*args, **kwargs)
            wrapped: T = self._wrap(home, made)
            return wrapped

        make.__doc__ = self.__doc__
        return make


def maker(
    method: Callable[Concatenate[Any, P], R], wrap: Callable[[Any, R], T], /, *, on_loop: bool = False
) -> _Maker[P, T]:
    """Make a method for threads of a plain method that returns an object, with its signature.

    Args:
        method: The function of the class on the loop.
        wrap: Converts the home and the object into the value for threads.
        on_loop: Whether to call the method on the loop.
    """
    return _Maker(method, wrap, on_loop)
