"""The one thread of a process that runs the event loop of all nodes for threads."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import warnings
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

from redpoll.blocking.futures import ThreadFuture
from redpoll.blocking.handover import Handover
from redpoll.errors import Closed
from redpoll.platforms import after_fork
from redpoll.runner import loop_factory

__all__ = ["AT_EXIT", "Lodger", "LoopThread", "enter"]

#: Seconds that what was sent has to leave when a program ends without closing.
AT_EXIT: Final = 2.0

#: Seconds without an answer after which the loop is taken for blocked, by a hook or a callback.
_BLOCKED: Final = 2.0

_logger = logging.getLogger("redpoll.blocking")


class Lodger(Protocol):
    """A node that lives on the loop."""

    async def evict(self, patience: float) -> None:
        """On the loop: end all that waits for anything here, within so many seconds; nothing where that has ended."""

    def stop(self, drain: float | None = ...) -> None:
        """Stop, and leave."""

    def inherit(self) -> None:
        """This is a child of the process that it runs in: close what came along."""


class LoopThread:
    """An event loop in a thread of its own: uvloop's where it is installed.

    It is a daemon thread, so that a program may end without it; what is registered at exit stops it before.

    Who lives here is let go by the loop alone, once nothing waits for it any more: however often a thread is interrupted
    that closes, starts or waits, nobody is left waiting for what nobody does.

    Attributes:
        handover: Takes calls for the loop.
        lodgers: Who lives here, and what is done when each is gone; the last one that leaves ends it.
    """

    handover: Handover

    def __init__(self) -> None:
        self.lodgers: dict[Lodger, ThreadFuture] = {}
        self._up = ThreadFuture()
        self._over = ThreadFuture()
        self._ending: asyncio.Event
        self._evictions: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="redpoll loop", daemon=True)

    def begin(self) -> None:
        """Begin, and wait until it runs."""
        _all.add(self)
        # In another thread, as it waits in a way that Ctrl-C may break.
        start_new_thread(self._start, ())
        self._up.result()

    def _start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001  # it is raised where somebody waits
            self._is_over(error)

    def end_when_begun(self) -> None:
        """Nobody moves in: end, also where it has not begun yet."""
        self._up.add_done_callback(self._begun_in_vain)

    def _begun_in_vain(self, begun: Future[Any]) -> None:
        if begun.exception() is None:
            self.handover.post(self._ending.set)

    # For threads

    def see_off(self, lodger: Lodger, ending: Callable[[], Awaitable[None]], seconds: float | None = None) -> None:
        """Have a lodger end in its own way, let it go, and wait for that.

        Args:
            lodger: Who; nothing is done if it is gone.
            ending: Ends it, on the loop.
            seconds: What that has. If a callback blocks the loop then, it is left to end when that returns. None is no limit.

        Ctrl-C cancels `ending`, and comes out when the lodger is gone; a second one at once, and the lodger goes all the
        same.
        """
        try:
            self.handover.run_within(seconds, self._see_off, lodger, ending)
        except Closed:  # its loop has ended, and it with that
            pass
        except TimeoutError:
            if self._is_blocked():
                _logger.warning("a callback blocks the event loop: %r is closed when it returns", lodger)
                return
        except BaseException:
            # Ctrl-C, maybe before anything was begun. Nothing comes in between before this one call.
            start_new_thread(self.evict, (lodger,))
            self.wait(lodger)
            raise
        self.wait(lodger)

    def evict(self, lodger: Lodger, patience: float = 0) -> None:
        """Have a lodger end, within so many seconds, and let it go."""
        self.handover.post(self._evict, (lodger, patience))

    def wait(self, lodger: Lodger) -> None:
        """Wait until a lodger is gone, and with the last one the thread."""
        gone = self.lodgers.get(lodger)
        if gone is not None:
            gone.exception()
        if not self.lodgers:
            self._join(None)

    def _join(self, seconds: float | None) -> bool:
        """Wait for the end of the thread; False if it has not come in so many seconds."""
        try:
            self._over.result(seconds)
        except TimeoutError:
            return False
        # Not by its `join`, which Ctrl-C may break; it is at its last step.
        while self._thread in threading.enumerate():
            time.sleep(0.0001)
        return True

    def end(self, seconds: float) -> bool:
        """End all that live here within so many seconds, and wait for the thread; False if a callback blocks it."""
        for lodger in list(self.lodgers):
            self.evict(lodger, seconds)
        over = self._join(seconds)
        while not over and not self._is_blocked():
            over = self._join(_BLOCKED)
        return over

    def _is_blocked(self) -> bool:
        try:
            self.handover.run_within(_BLOCKED, _nothing)
        except TimeoutError:
            return True
        except Closed:
            pass
        return False

    # The loop

    async def _see_off(self, lodger: Lodger, ending: Callable[[], Awaitable[None]]) -> None:
        if lodger in self.lodgers:
            try:
                await ending()
            finally:
                self._let_go(lodger)

    def _evict(self, lodger: Lodger, patience: float = 0) -> None:
        task = self.handover.loop.create_task(self._see_off(lodger, lambda: lodger.evict(patience)))
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    def _let_go(self, lodger: Lodger) -> None:
        global _shared  # noqa: PLW0603  # one a process
        with _lock:
            gone = self.lodgers.pop(lodger, None)
            if not self.lodgers:
                if _shared is self:
                    _shared = None
                self._ending.set()
        if gone is not None:
            gone.finish(None, None)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(self._main())
                except BaseException:
                    if not self._up.done():
                        raise
                    # By a callback: `sys.exit`, say.
                    _logger.exception("a callback ended the event loop, and with it all nodes for threads")
                    self._end_all(runner)
                finally:
                    if self._up.done():
                        self.handover.close()
        except BaseException as error:
            if self._up.done():
                _logger.exception("the event loop of all nodes for threads could not be closed")
            self._is_over(error)
        else:
            self._is_over(None)

    def _is_over(self, error: BaseException | None) -> None:
        """The thread ends, maybe because of an error; nobody is left."""
        for lodger in list(self.lodgers):
            self._let_go(lodger)
        if self._up.done():
            self.handover.end()
        else:
            self._up.finish(None, error)
        _all.discard(self)
        self._over.finish(None, None)

    async def _main(self) -> None:
        self._ending = asyncio.Event()
        self.handover = Handover(asyncio.get_running_loop())
        self._up.finish(None, None)
        await self._ending.wait()

    def _end_all(self, runner: asyncio.Runner) -> None:
        """End all that live here, though callbacks end the loop again."""
        global _shared  # noqa: PLW0603  # one a process
        with _lock:
            if _shared is self:
                _shared = None
        end = time.monotonic() + AT_EXIT
        while self.lodgers and time.monotonic() < end:
            try:
                runner.run(self._evict_all())
            except BaseException:
                _logger.exception("a callback ended the event loop once more")

    async def _evict_all(self) -> None:
        for lodger in list(self.lodgers):
            self._evict(lodger)
        await asyncio.wait(self._evictions)

    def inherit(self) -> None:
        """This is a child of the process, in which the thread does not run."""
        if hasattr(self, "handover"):
            self.handover.abandon()
        for lodger in list(self.lodgers):
            lodger.inherit()


# Reentrant: a signal's handler may run while its thread is in here.
_lock = threading.RLock()
_shared: LoopThread | None = None
#: Those that have not ended; one that ends is not shared any more.
_all: set[LoopThread] = set()
#: What a child has of its parent's loops: an event loop that runs, as these seem to, cannot be dropped.
_inherited: list[LoopThread] = []


def enter(lodger: Lodger) -> LoopThread:
    """Move in: the loop is started for the first one. `LoopThread.see_off` is the way out.

    Raises:
        UsageError: This is the thread of a loop, which would wait for itself.
    """
    global _shared  # noqa: PLW0603  # one a process
    for each in list(_all):
        if each._up.done():
            each.handover.check_blocking()
    try:
        for each in list(_all):
            if lodger in each.lodgers:  # it leaves, and its thread was interrupted when it waited for that
                each.wait(lodger)
        with _lock:
            thread = _shared
            if thread is None:
                thread = LoopThread()
                thread.begin()
            thread.lodgers[lodger] = ThreadFuture()
            _shared = thread
            return thread
    except BaseException:
        # Ctrl-C, maybe when it was in. Nothing comes in between before this one call.
        start_new_thread(_turn_away, (lodger,))
        raise


def _turn_away(lodger: Lodger) -> None:
    """Let a lodger go whose entering was interrupted, and end what was begun for it alone."""
    with _lock:
        for thread in list(_all):
            if lodger in thread.lodgers:
                thread.evict(lodger)
            elif not thread.lodgers:
                thread.end_when_begun()


def _after_fork() -> None:
    global _lock, _shared  # noqa: PLW0603  # as above
    _lock = threading.RLock()
    _shared = None
    for thread in list(_all):
        _inherited.append(thread)
        thread.inherit()
    _all.clear()


def _nothing() -> None:
    pass


def _at_exit() -> None:
    for thread in list(_all):
        lodgers = list(thread.lodgers)
        texts = [f"{lodger!r} was not stopped before the program ended" for lodger in lodgers]
        # A callback that blocks the loop is not waited for.
        if lodgers and thread.end(AT_EXIT):
            for lodger in lodgers:
                lodger.stop(0)
        for text in texts:
            warnings.warn(text, ResourceWarning, stacklevel=1)


after_fork(_after_fork)
atexit.register(_at_exit)
