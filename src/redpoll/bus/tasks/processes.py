"""Handlers that compute, each in a child process: one that dies takes its own task along and no other.

A child serves one task at a time. The thread of the pool that has the task waits for it, so the loop never does.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle  # between a process and the children that it started itself
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from redpoll.bus.context import CURRENT, NO_HEADERS, Context
from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Envelope, Payloads
from redpoll.bus.tasks.ending import Ending, Way, failed, returned
from redpoll.bus.tasks.retry import Retry
from redpoll.bus.tasks.task import Task
from redpoll.errors import ConfigError, UsageError

__all__ = ["Child", "Errand", "Processes"]

#: A child that died before it began its task is replaced; after so many the task is not handed to another.
_STARTS: Final = 2
#: Seconds for a child to start: to import the modules of the handler.
_START_LIMIT: Final = 60.0
#: Seconds for a child to end by itself.
_LAST: Final = 1.0


class Child:
    """A child process, and the way to it.

    Args:
        setup: The handler and its settings, pickled.
    """

    _started = False

    def __init__(self, setup: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._way, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, setup), name="redpoll task", daemon=True)
        try:
            self._process.start()
        except BaseException:
            self._way.close()
            raise
        finally:
            theirs.close()

    def work(self, job: bytes, say: Callable[[Envelope], object], begin: Callable[[], object]) -> Ending | None:
        """Send a task, and wait for its ending.

        Args:
            job: The task, pickled.
            say: Is called with its progress.
            begin: Is called as its handler begins.

        Returns:
            None where the child was gone before it began, or did not start within `_START_LIMIT`.
        """
        begun = False
        try:
            if not self._started:
                if not self._way.poll(_START_LIMIT):
                    self.kill()
                self._way.recv()
                self._started = True
            self._way.send_bytes(job)
            while True:
                said = self._way.recv()
                if isinstance(said, Ending):
                    return said
                if said is None:
                    begun = True
                    begin()
                else:
                    say(said)
        except (OSError, EOFError):
            self.kill()
            self._process.join()
            self._way.close()
            code = self._process.exitcode
            self._process.close()
            if not begun:
                return None
            how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
            return Ending(Way.DIED, None, f"its process ended with {how}")

    def kill(self) -> None:
        """End it now; from any thread."""
        with suppress(ValueError):  # it is closed
            self._process.kill()

    def release(self) -> None:
        """End it while it is idle."""
        self._way.close()

    def stop(self) -> None:
        """Wait until it has ended, but not for long."""
        self.release()
        self._process.join(_LAST)
        self.kill()
        self._process.join()
        self._process.close()


class Errand:
    """A task on its way to a child.

    Attributes:
        delivery: The task.
        more: More arguments for the handler, which can be pickled.
        child: The child that has it.
        stopped: True once it is not wanted any more.
    """

    __slots__ = ("child", "delivery", "more", "stopped")

    def __init__(self, delivery: Delivery, more: tuple[Any, ...] = ()) -> None:
        self.delivery = delivery
        self.more = more
        self.child: Child | None = None
        self.stopped = False


class Processes:
    """The children of a worker. They are started when they are needed, and used again.

    Args:
        handler: A plain function that can be pickled.
        payloads: The serializers; they are pickled as well.
        retry: The errors that are tried again.

    Raises:
        ConfigError: One of them cannot be pickled.
        UsageError: This is a child that imports the program, which began anew.
    """

    def __init__(self, handler: Callable[..., Any], payloads: Payloads, retry: Retry | None) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself looks for it
            raise UsageError(
                "a process of the pool imported the program, and that began anew",
                "begin it under `if __name__ == '__main__':`",
            )
        try:
            self._setup = pickle.dumps((handler, payloads, retry))
        except Exception as error:
            raise ConfigError(
                "handler", handler, f"cannot be sent to a process: {error}", "define it at the top of a module"
            ) from error
        self._idle: list[Child] = []
        self._closed = False
        self._lock = threading.Lock()

    def work(self, errand: Errand, say: Callable[[Envelope], object], begin: Callable[[], object]) -> Ending:
        """Run a task in a child; called in a thread that may wait. One that cannot be pickled ends with that error."""
        delivery = errand.delivery
        inputs = [(each, outcome._replace(envelope=_plain(outcome.envelope))) for each, outcome in delivery.inputs]
        job = (
            delivery.id,
            delivery.queue,
            _plain(delivery.envelope),
            delivery.attempt,
            delivery.left,
            inputs,
            errand.more,
        )
        try:
            packed = pickle.dumps(job)
        except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
            error.add_note(f"while sending task {delivery.id} to its process")
            return failed(error)
        starts = 0
        while starts < _STARTS:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                # Those that died while they were idle say nothing about this task.
                starts += 1
                child = Child(self._setup)
            with self._lock:
                errand.child = child
                if errand.stopped:
                    child.kill()
            ending = child.work(packed, say, begin)
            with self._lock:
                errand.child = None
            if ending is None and not errand.stopped:
                continue
            if ending is not None and ending.way is not Way.DIED:
                with self._lock:
                    kept = not self._closed
                    if kept:
                        self._idle.append(child)
                if not kept:
                    child.stop()
            return ending or Ending(Way.REQUEUE)
        what = f"it ended, or took over {_START_LIMIT:g} s (standard error may tell why)"
        return Ending(Way.DIED, None, f"its process did not start: {what}")

    def stop(self, errand: Errand) -> None:
        """End the child that works on a task, or that is about to, and no other."""
        with self._lock:
            errand.stopped = True
            if errand.child is not None:
                errand.child.kill()

    def close(self) -> None:
        """End all children that are idle, all at once; one that is busy ends after its task. It waits for them."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.release()
        for child in idle:
            child.stop()


def _plain(envelope: Envelope | None) -> Any:
    """Return an envelope that can be pickled: its body may be a view."""
    return envelope if envelope is None else envelope._replace(body=bytes(envelope.body))


class _Held:
    """A task in a child."""

    lost = False
    cancelled = False

    def __init__(self, way: Connection, job: tuple[Any, ...]) -> None:
        self.id, self.queue, self.envelope, self.attempt, self.left, self.inputs, self.more = job
        self._way = way
        self._lock = threading.Lock()
        self._ended = False

    def progress(self, envelope: Envelope) -> bool:
        # A pipe mixes what several threads write. After the end, the parent would take it for the next task's.
        with self._lock:
            if not self._ended:
                self._way.send(envelope)
            return not self._ended

    def end(self, ending: Ending) -> None:
        with self._lock:
            self._ended = True
            self._way.send(ending)


def _serve(way: Connection, setup: bytes) -> None:
    """Do tasks, one after the other; runs in the child."""
    # Ctrl-C reaches the whole group; the parent decides what becomes of the children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="redpoll parent", daemon=True).start()
    handler, payloads, retry = pickle.loads(setup)  # noqa: S301
    way.send(None)
    while True:
        try:
            job = way.recv()
        except (EOFError, OSError):
            return
        way.send(None)
        held: Any = _Held(way, job)
        try:
            CURRENT.set(Context(held.envelope.headers or NO_HEADERS, held))
            value = handler(Task(held, payloads), *held.more)
            ending = value if isinstance(value, Ending) else returned(value, payloads)
        except BaseException as error:  # noqa: BLE001  # any exception of a handler ends its task
            ending = failed(error, retry)
        held.end(ending)


def _end_with_parent() -> None:
    """End this process when its parent was killed: a handler may never return, and its result would reach nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
