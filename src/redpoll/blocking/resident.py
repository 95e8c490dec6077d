"""What lives on the loop thread: how it moves in and out, whatever interrupts that, and what a fork leaves of it."""

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
    """A node, a bus, or whatever else threads use and the loop thread runs: a `Lodger` with a way in and a way out.

    A subclass says how it ends where nobody asks for that: `evict`, `stop`, `inherit`.
    """

    _thread: LoopThread | None = None

    def _move_in(self, start: Callable[[Handover], Any]) -> None:
        """Start on the loop, and wait for that.

        Args:
            start: Starts it, on the loop, to which it is given the way; what it raises comes out.

        Ctrl-C leaves nothing behind.

        Raises:
            UsageError: This is the thread of a loop, which would wait for itself.
        """
        thread = enter(self)
        # Before it runs: its first message may be handled before this thread goes on.
        self._thread = thread
        try:
            thread.handover.run(start, thread.handover)
        except BaseException:
            # Ctrl-C too, maybe when it had just begun to run. Nothing comes in between before this one call.
            start_new_thread(thread.evict, (self,))
            self._thread = None
            thread.wait(self)
            raise

    def _move_out(self, ending: Callable[[], Awaitable[None]], seconds: float | None = None) -> None:
        """End on the loop, and wait for that; nothing is done where it has not moved in, nor in a child of the process.

        Args:
            ending: Ends it, on the loop.
            seconds: What that has, where a callback blocks the loop. See `LoopThread.see_off`.

        Raises:
            UsageError: This is the loop's thread, which would wait for itself.
        """
        thread = self._thread
        if thread is None or thread.handover.forked:
            return
        thread.handover.check_blocking()
        thread.see_off(self, ending, seconds)
        self._thread = None

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a child of the process in which it lives."""
        return self._thread is not None and self._thread.handover.forked

    async def evict(self, patience: float) -> None:
        """For the library: the loop ends, or a start that failed. End within so many seconds; nothing if it has ended."""
        raise NotImplementedError

    def stop(self, drain: float | None = 0) -> None:
        """Stop, and move out; for the library, when the program ends."""
        raise NotImplementedError

    def inherit(self) -> None:
        """For the library: this is a child of the process."""


class _Watch(weakref.ref[Any]):
    """A reference to what a user holds, with the call that is due when nobody refers to that any more."""

    __slots__ = ("due",)

    due: Callable[[], object]


_call_due = methodcaller("due")


def when_dropped(held: object, call: Callable[[], object]) -> object:
    """Call a function, in a thread of its own, when nobody refers to an object any more.

    For what must happen though Ctrl-C comes just then: that may interrupt `__del__` before its first line, and between C's
    functions, of which this is made alone, nothing interrupts.

    Returns:
        What asks for the call: drop it where that is not wanted any more.
    """
    watch = _Watch(held, _call_due)
    watch.due = partial(start_new_thread, call, ())
    return watch
