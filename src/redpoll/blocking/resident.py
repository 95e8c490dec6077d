"""Residents of the loop thread: how nodes and buses start and end there, also across Ctrl-C and forks."""

from __future__ import annotations

import weakref
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from functools import partial
from operator import methodcaller
from typing import Any

from redpoll.blocking.handover import Handover
from redpoll.blocking.loop_thread import LoopThread, enter

__all__ = ["Resident", "when_dropped"]


class Resident:
    """An object that threads use and the loop thread runs: a node, a bus.

    A subclass defines how it ends without being asked by its user: `evict`, `stop`, `inherit`.
    """

    _thread: LoopThread | None = None

    def _move_in(self, start: Callable[[Handover], Any]) -> None:
        """Start on the loop, and wait until started.

        Args:
            start: Called on the loop, with the handover to it. Its exceptions are raised here.

        Ctrl-C leaves nothing running.

        Raises:
            UsageError: This is the thread of a loop, which would wait for itself.
        """
        thread = enter(self)
        # Before the start: the first message may be handled before this thread continues.
        self._thread = thread
        try:
            thread.handover.run(start, thread.handover)
        except BaseException:
            # Also Ctrl-C, perhaps just after the start. Nothing can interrupt before this one call.
            start_new_thread(thread.evict, (self,))
            self._thread = None
            thread.wait(self)
            raise

    def _move_out(self, ending: Callable[[], Awaitable[None]], seconds: float | None = None) -> bool:
        """End on the loop, and wait until ended. Does nothing if it was not started, or in a forked child.

        Args:
            ending: Called on the loop; ends this object.
            seconds: The limit if a callback blocks the loop: see `LoopThread.see_off`.

        Returns:
            False if it did not wait, in a signal handler: see `LoopThread.see_off`.

        Raises:
            UsageError: This is the loop's thread, which would wait for itself.
        """
        thread = self._thread
        if thread is None or thread.handover.forked:
            return True
        thread.handover.check_thread()
        waited = thread.see_off(self, ending, seconds)
        if waited:
            self._thread = None
        return waited

    @property
    def _is_inherited(self) -> bool:
        """True in a forked child of the process that started it."""
        return self._thread is not None and self._thread.handover.forked

    async def evict(self, patience: float) -> None:
        """For the library: end within a number of seconds, since the loop ends, or a start has failed."""
        raise NotImplementedError

    def stop(self, drain: float | None = 0) -> None:
        """Stop; the library calls it at the exit of the program."""
        raise NotImplementedError

    def inherit(self) -> None:
        """For the library: close inherited resources in a forked child."""


class _Watch(weakref.ref[Any]):
    """A weak reference to an object of the user, with the call to make when the object is dropped."""

    __slots__ = ("due",)

    due: Callable[[], object]


_call_due = methodcaller("due")


def when_dropped(held: object, call: Callable[[], object]) -> object:
    """Call a function, in a thread of its own, when an object is dropped.

    Ctrl-C may interrupt `__del__` before its first line. This mechanism consists of C functions alone, which Ctrl-C
    does not interrupt.

    Returns:
        A handle; dropping it withdraws the call.
    """
    watch = _Watch(held, _call_due)
    watch.due = partial(start_new_thread, call, ())
    return watch
