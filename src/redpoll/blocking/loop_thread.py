"""The one thread of a process that runs the event loop of all nodes for threads."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from concurrent.futures import Future
from typing import Any, Protocol

from redpoll.blocking.futures import ThreadFuture
from redpoll.blocking.handover import Handover
from redpoll.runner import loop_factory

__all__ = ["Lodger", "LoopThread", "enter", "leave"]


class Lodger(Protocol):
    """A node that lives on the loop."""

    def stop(self, drain: float | None = ...) -> None:
        """Stop, and leave."""

    def inherit(self) -> None:
        """This is a child of the process that it runs in: close what came along."""


class LoopThread:
    """An event loop in a thread of its own: uvloop's where it is installed.

    It is a daemon thread, so that a program may end without it; what is registered at exit stops it before.

    Attributes:
        handover: Takes calls for the loop.
        lodgers: Who lives here; the last one that leaves ends it.
    """

    handover: Handover

    def __init__(self) -> None:
        self.lodgers: set[Lodger] = set()
        self._up = ThreadFuture()
        self._ending: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="redpoll loop", daemon=True)
        _all.add(self)
        try:
            self._thread.start()  # waits as well, for the thread to be there
            self._up.result()
        except KeyboardInterrupt:
            self._up.add_done_callback(self._begun_in_vain)
            raise

    def _begun_in_vain(self, begun: Future[Any]) -> None:
        if begun.exception() is None:
            self.handover.post(self._ending.set)

    def end(self) -> None:
        """End the loop, and wait for the thread."""
        self.handover.post(self._ending.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._main())
        except BaseException as error:
            if self._up.done():
                raise
            self._up.finish(None, error)

    async def _main(self) -> None:
        self._ending = asyncio.Event()
        self.handover = Handover(asyncio.get_running_loop())
        self._up.finish(None, None)
        try:
            await self._ending.wait()
        finally:  # also when a callback ended the loop, by `sys.exit` say: nobody is to wait for it then
            self.handover.close()

    def inherit(self) -> None:
        """This is a child of the process, in which the thread does not run."""
        if hasattr(self, "handover"):
            self.handover.abandon()
        for lodger in list(self.lodgers):
            lodger.inherit()


_lock = threading.Lock()
_shared: LoopThread | None = None
#: Those that have not ended; one that ends is not shared any more.
_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()
#: What a child has of its parent's loops: an event loop that runs, as these seem to, cannot be dropped.
_inherited: list[LoopThread] = []


def enter(lodger: Lodger) -> LoopThread:
    """Move in: the loop is started for the first one."""
    global _shared  # noqa: PLW0603  # one a process
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        _shared.lodgers.add(lodger)
        return _shared


def leave(thread: LoopThread, lodger: Lodger) -> None:
    """Move out; with the last one the thread ends."""
    global _shared  # noqa: PLW0603  # as above
    with _lock:
        thread.lodgers.discard(lodger)
        last = not thread.lodgers
        if last and _shared is thread:
            _shared = None
    if last:
        thread.end()


def _after_fork() -> None:
    global _lock, _shared  # noqa: PLW0603  # as above
    _lock = threading.Lock()
    _shared = None
    for thread in list(_all):
        _inherited.append(thread)
        thread.inherit()
    _all.clear()


def _at_exit() -> None:
    thread = _shared
    if thread is None:
        return
    for lodger in list(thread.lodgers):
        text = f"{lodger!r} was not stopped before the program ended"
        lodger.stop(0)
        warnings.warn(text, ResourceWarning, stacklevel=1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
