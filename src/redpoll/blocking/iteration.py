"""Asynchronous iterators for threads."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from _thread import start_new_thread
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from redpoll.blocking.handover import Handover
from redpoll.blocking.thread_queue import Slot, ThreadQueue
from redpoll.errors import Closed

__all__ = ["Iteration"]

T_co = TypeVar("T_co", covariant=True)


class _Step(NamedTuple):
    """The outcome of a step.

    Attributes:
        value: The value, if there is one.
        error: The exception otherwise.
        over: Whether the iteration has ended.
    """

    value: Any
    error: BaseException | None = None
    over: bool = False


_OVER: Final = _Step(None, None, True)


class Iteration(ThreadQueue[_Step], Generic[T_co]):
    """An asynchronous iterator for threads. A step begins when a thread waits for it.

    Any number of threads may share it. Ctrl-C during a step loses no value: the next step returns it. Closing this object, or
    dropping it by leaving a loop with ``break``, closes the iterator.

    Args:
        handover: The way to the iterator's loop.
        check: Raises on a thread that must not wait.
        source: The iterator.
        name: Its owner, for errors.
        wrap: Called on the loop: converts a value into the one for threads.
    """

    def __init__(
        self,
        handover: Handover,
        check: Callable[[], object],
        source: AsyncIterator[Any],
        name: str,
        wrap: Callable[[Any], T_co],
    ) -> None:
        super().__init__(name)
        self._handover = handover
        self._may_wait = check
        self._source = source
        self._wrap = wrap
        #: The step under way, if there is one. Closing reads it on the loop, when this object may be gone.
        self._steps: set[asyncio.Task[_Step]] = set()
        self._left = False
        self._context = contextvars.copy_context()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T_co:
        """Wait for the next value.

        Raises:
            Closed: The loop ended.
            Exception: The exception of the iterator.
        """
        self._may_wait()
        slot: Slot[_Step] = Slot()
        try:
            step = self.take(slot) or _OVER
            value, error, over = step
            # No call from here on: Ctrl-C cannot interrupt.
            slot.item = None
        except BaseException as interruption:
            if slot.item is not None:
                # Ctrl-C after the value was taken. Nothing can interrupt before this one call.
                start_new_thread(self.put_back, (slot,))
            if self._left and isinstance(interruption, Closed):
                raise StopIteration from None
            raise
        if over:
            raise StopIteration
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]  # typed by `wrap`

    def close(self) -> None:
        """Stop: close the iterator, and end the waits of threads."""
        if not self._left:
            self._left = True
            self._handover.post(_finish, (self._handover.loop, self._source, self._steps))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop."""
        self.close()

    def __del__(self) -> None:
        handover = getattr(self, "_handover", None)
        if handover is not None and not handover.forked:
            self.close()

    def fail(self, error: BaseException) -> None:  # noqa: ARG002
        """End, since the loop has ended."""
        self._end()

    # For the queue

    def _check(self) -> None:
        self._handover.check_blocking()

    def _ask(self) -> None:
        self._handover.post(self._look, (), self)

    # For the loop

    def _look(self) -> None:
        loop = self._handover.loop
        if self._left or not loop.is_running():
            self._end()
        elif not self._steps and self._wanted:
            # The callback holds no reference: this object may be dropped meanwhile.
            me = weakref.ref(self)

            def stepped(step: asyncio.Task[_Step]) -> None:
                iteration = me()
                if iteration is not None:
                    iteration._stepped(step)

            step = loop.create_task(_next(self._source), context=self._context)
            self._steps.add(step)
            step.add_done_callback(stepped)

    def _stepped(self, step: asyncio.Task[_Step]) -> None:
        self._steps.discard(step)
        if step.cancelled():
            self._end()
            return
        found = step.result()
        self._give([found if found.over or found.error is not None else _Step(self._wrap(found.value))])
        self._look()


#: Tasks that close dropped iterators.
_closing: Final[set[asyncio.Task[None]]] = set()


def _finish(loop: asyncio.AbstractEventLoop, source: AsyncIterator[Any], steps: set[asyncio.Task[_Step]]) -> None:
    if not loop.is_running():  # it has ended, and has closed its iterators
        return
    closing = loop.create_task(_close(source, steps))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


async def _close(source: AsyncIterator[Any], steps: set[asyncio.Task[_Step]]) -> None:
    for step in tuple(steps):
        step.cancel()
        await asyncio.wait([step])
    if hasattr(source, "aclose"):
        await source.aclose()


async def _next(source: AsyncIterator[Any]) -> _Step:
    try:
        return _Step(await anext(source))
    except StopAsyncIteration:
        return _OVER
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # raised on the waiting thread
        return _Step(None, error)
