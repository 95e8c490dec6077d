"""A worker process of `redpoll run`: a fresh interpreter, which imports the app and works until it is told to stop.

The standard input that it was given says when: a line "stop" lets handlers finish, "now" does not, and its end, as when the
parent was killed, is a "stop". So is SIGTERM. Exit code 0: all that it had begun was done. While the app is imported a
thread looks for that end: an import that never returns does not outlive the parent by more than the grace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from redpoll import run
from redpoll.bus import Requeue, Task
from redpoll.bus.app import App, Middleware, Proceed, Work, Working
from redpoll.cli.codes import ExitCode, code_of
from redpoll.cli.run.shared import ENDED, READY, STARTING, Options, Status, load
from redpoll.cli.worker import Worker
from redpoll.errors import RedpollError, TaskRejected, Unsupported, UsageError
from redpoll.platforms import resident_bytes, signals

__all__ = ["main"]

_log = logging.getLogger("redpoll.app")


class _Watched(Middleware):
    """Says what the process does: a line for each task, its last task, and when it has done enough.

    Attributes:
        open: The number of handlers that run.
        was_cut: Whether one was stopped, behind the signal to stop.
    """

    def __init__(self, options: Options, status: Status, stop: asyncio.Event) -> None:
        self._options = options
        self._status = status
        self._stop = stop
        self._state = STARTING
        self._running = 0
        self._done = 0
        self.open = 0
        self.was_cut = False

    def ready(self) -> None:
        """Say that the process works; it may have done enough already."""
        if self._state == STARTING:
            self._state = READY
        self._status.write(self._state, self._running)

    async def handle(self, work: Work, proceed: Proceed) -> Any:
        """Handle."""
        self.open += 1
        try:
            return await (proceed(work) if work.task is None else self._handle(work, work.task, proceed))
        except asyncio.CancelledError:
            self.was_cut |= self._stop.is_set()
            raise
        finally:
            self.open -= 1

    async def _handle(self, work: Work, task: Task, proceed: Proceed) -> Any:
        if self._state == ENDED:
            raise Requeue  # it came in the turn in which the last one ended
        title = f"{work.name} {task.id}"
        self._running += 1
        self._status.write(self._state, self._running, title)
        began = time.perf_counter()
        try:
            result = await proceed(work)
        except BaseException as error:
            back = isinstance(error, Requeue | TaskRejected | asyncio.CancelledError)
            how = "was stopped or gave itself back" if back else "failed"
            level = logging.INFO if back else logging.WARNING
            _log.log(level, "task %s %s after %s: %s: %s", title, how, _took(began), type(error).__name__, error)
            raise
        else:
            _log.info("task %s done in %s", title, _took(began))
            return result
        finally:
            self._running -= 1
            self._done += 1
            self._look()
            self._status.write(self._state, self._running)

    def _look(self) -> None:
        """End the process, in order, if it has done enough, or has grown too large."""
        most, limit = self._options.max_tasks, self._options.max_memory
        if self._state != ENDED and (
            (most is not None and self._done >= most) or (limit is not None and resident_bytes() > limit)
        ):
            _log.info(
                "worker %d ends after %d tasks, with %d MB", self._options.number, self._done, resident_bytes() >> 20
            )
            self._state = ENDED
            self._stop.set()


def _took(began: float) -> str:
    seconds = time.perf_counter() - began
    return f"{1_000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


class _Json(logging.Formatter):
    """Log records as JSON objects, one on a line."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        fields: dict[str, Any] = {
            "event": "log",
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "worker": self._worker,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def main(text: str) -> int:
    """Work; return the exit code.

    Args:
        text: The options, as `Options.dump` makes them.
    """
    options = Options.read(text)
    parent = _parent()
    handler = logging.StreamHandler(sys.stdout if options.json else sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname)s worker-{options.number} %(name)s: %(message)s")
    handler.setFormatter(_Json(options.number) if options.json else plain)
    logging.basicConfig(level=logging.WARNING if options.quiet else logging.INFO, handlers=[handler])
    try:
        app = _imported(options, parent)
        if options.url is not None:
            app.url = options.url
        if app.url.startswith("memory://"):
            raise UsageError(f"{app.url} is inside of one process", "redpoll hub --data DIR, and redpoll://127.0.0.1")
        return run(_work(app, options, Status(options.status), parent))
    except RedpollError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else None
        _log.error("worker %d cannot work: %s", options.number, error, exc_info=cause)
        # A new worker would lack the same.
        return ExitCode.USAGE if isinstance(error, Unsupported) else code_of(error)


def _parent() -> int:
    """Return a descriptor of what the parent says; standard input is empty then.

    What a handler starts inherits standard input, and would read the parent's "stop" instead of this process.
    """
    parent = os.dup(0)
    with Path(os.devnull).open() as empty:
        os.dup2(empty.fileno(), 0)
    return parent


def _imported(options: Options, parent: int) -> App:
    """Import the app."""
    done = threading.Event()
    if hasattr(select, "poll"):
        threading.Thread(target=_leave_with_parent, args=(parent, done, options.grace), daemon=True).start()
    try:
        return load(options.app)
    finally:
        done.set()


def _leave_with_parent(parent: int, done: threading.Event, grace: float) -> None:
    """End the process if its parent has ended, and the grace behind that, before it is done."""
    ended = select.poll()
    ended.register(parent, 0)  # its end alone: what it says is read later
    while not done.wait(1):
        if ended.poll(0) and not done.wait(grace):
            os._exit(ExitCode.NOT_DELIVERED)


async def _work(app: App, options: Options, status: Status, parent: int) -> int:
    stop, now = asyncio.Event(), asyncio.Event()
    watched = _Watched(options, status, stop)
    app.middleware.insert(0, watched)
    listening = asyncio.ensure_future(_listen(parent, stop, now))
    try:
        with signals(asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM), lambda _: stop.set()):
            working = app.work(options.queues, concurrency=options.concurrency, drain=options.grace)
            finished = True
            try:
                if await _begin(app, working, stop):
                    watched.ready()
                    await stop.wait()
                    finished = await _finish(app, working, watched, now, options.grace)
            finally:
                await app.close()
            if not finished or working.in_threads:
                # Threads may continue for ever, and nobody waits for them: their tasks are somebody else's now.
                with suppress(OSError):  # nobody reads it any more
                    sys.stdout.flush()
                logging.shutdown()
                os._exit(ExitCode.DONE if finished else ExitCode.NOT_DELIVERED)
            return ExitCode.DONE
    finally:
        listening.cancel()


async def _begin(app: App, working: Working, stop: asyncio.Event) -> bool:
    """Connect and begin to work; return False if the process is to stop before that is done."""

    async def begin() -> None:
        await app.start()
        await working.__aenter__()

    beginning = asyncio.ensure_future(begin())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([beginning, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not beginning.done():
            beginning.cancel()
            await asyncio.wait([beginning])
    if not beginning.cancelled():
        await beginning
    return not beginning.cancelled()


async def _finish(app: App, working: Working, watched: _Watched, now: asyncio.Event, grace: float) -> bool:
    """Let handlers finish, within the time and until it has to be now; return True if all have, and it is recorded."""
    began, engine = time.monotonic(), app.bus.engine

    async def leave() -> None:
        await working.__aexit__(None, None, None)
        # The rest of the time is for outcomes, where the hub is away.
        await app.close(max(0.0, began + grace - time.monotonic()))

    leaving = asyncio.ensure_future(leave())
    urged = asyncio.ensure_future(now.wait())
    # Coroutines are cancelled when the time is over; the rest is for them to end, and for the lifespan.
    await asyncio.wait([leaving, urged], timeout=grace + 1, return_when=asyncio.FIRST_COMPLETED)
    urged.cancel()
    if finished := leaving.done():
        await leaving
        finished = time.monotonic() - began < grace or not (watched.was_cut or watched.open)
    else:
        leaving.cancel()
        await asyncio.wait([leaving], timeout=1)
    if lost := getattr(engine, "unrecorded", 0):
        _log.warning("outcomes that the hub has not taken within the grace: %d; their tasks go back", lost)
    return finished and not lost


async def _listen(parent: int, stop: asyncio.Event, now: asyncio.Event) -> None:
    """Set the events as the parent says."""
    reader = Worker("redpoll run")
    try:
        with suppress(OSError):
            while data := await reader.call(partial(os.read, parent, 64)):
                stop.set()
                if b"now" in data:
                    now.set()
    finally:
        stop.set()
        reader.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
