"""The parent of `redpoll run`: starts the workers, starts those anew that died, and stops them."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from redpoll.cli.child import Program
from redpoll.cli.codes import ExitCode
from redpoll.cli.output import Output, counted
from redpoll.cli.run.shared import ENDED, READY, STARTING, Options, Status
from redpoll.cli.run.watching import Notifier, Sources
from redpoll.cli.runtime import Stop

__all__ = ["Supervisor"]

#: Seconds between two looks, at workers that start and at files.
_LOOK: Final = 0.05
_FILES: Final = 0.5
#: Seconds before a worker that died is started anew: the first time, and the longest; and after how many it counts as new.
_PAUSE: Final = 0.5
_LONGEST: Final = 30.0
_STEADY: Final = 60.0
#: Seconds beyond the grace after which a worker that does not end is killed.
_BEYOND: Final = 5.0


class _Worker:
    """A place for one worker process after another."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.program: Program | None = None
        self.again = False  # it was told to stop, and is to be replaced
        self.has_worked = False  # a process of it has

    def tell(self, line: str) -> None:
        """Send a line to the process, if there is one."""
        if self.program is not None:
            self.program.tell(f"{line}\n")

    @property
    def ready(self) -> bool:
        """True once a process has worked: one that ends after a few tasks may never work at the same time as all others."""
        self.has_worked |= self.program is not None and Status.read(self.path).state != STARTING
        return self.has_worked


class Supervisor:
    """Keeps worker processes running until it is stopped.

    Args:
        options: The options of each.
        workers: The number of processes.
        reload: Replace them when a source file changes.
        output: Prints.
        sources: Makes what looks at the files.
    """

    def __init__(
        self,
        options: Options,
        workers: int,
        *,
        reload: bool,
        output: Output,
        sources: Callable[[Path], Sources] = Sources,
    ) -> None:
        self._options = options
        self._count = workers
        self._reload = reload
        self._output = output
        self._sources = sources
        self._workers: list[_Worker] = []
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._code = ExitCode.DONE

    async def run(self, stop: Stop) -> ExitCode:
        """Run the workers until they are to stop.

        Returns:
            DONE: all that was begun was done; NOT_DELIVERED: some went back; USAGE: the app cannot be loaded. The code of
            the signal, where it had to be at once.
        """
        notifier = Notifier()
        with tempfile.TemporaryDirectory(prefix="redpoll-run-") as folder:
            self._workers = [_Worker(each + 1, Path(folder, str(each + 1))) for each in range(self._count)]
            keeping = [asyncio.ensure_future(self._keep(each)) for each in self._workers]
            others = [
                asyncio.ensure_future(each)
                for each in (self._announce(notifier), self._watch_files(), _breathe(notifier), self._obey(stop))
            ]
            try:
                kept: asyncio.Future[Any] = asyncio.gather(*keeping)
                pending: set[asyncio.Future[Any]] = {kept, *others}
                while not kept.done():
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()  # an error of any, as of a closed output, ends all in order
            finally:
                for each in (*keeping, *others):
                    each.cancel()
                await asyncio.gather(*keeping, *others, return_exceptions=True)
        self._output.event("done", {})
        return stop.code if stop.is_urgent else self._code

    async def _obey(self, stop: Stop) -> None:
        """Pass on what the signals say."""
        # Waited for from now on: a second signal may come in the same turn as the first.
        again = asyncio.ensure_future(stop.wait_again())
        try:
            await stop.wait()
            grace = self._options.grace
            self._end("stop", f"stopping, within {grace:g} s; again to stop at once")
            await asyncio.wait([again], timeout=grace + _BEYOND)
        finally:
            again.cancel()
        self._end("now", "stopping at once")
        await asyncio.sleep(_BEYOND)
        for worker in self._workers:
            if worker.program is not None:
                await worker.program.kill()

    def _end(self, line: str, notice: str) -> None:
        self._stopping.set()
        self._woken.set()
        for worker in self._workers:
            worker.tell(line)
        Notifier().tell("STOPPING=1")
        self._output.notice(notice)
        self._output.event("stopping", {"now": line == "now"})

    async def _announce(self, notifier: Notifier) -> None:
        """Say when all work."""
        while not all(each.ready for each in self._workers):  # noqa: ASYNC110  # other processes say it, in files
            await asyncio.sleep(_LOOK)
        self._output.notice(f"{counted(self._count, 'worker')} ready")
        self._output.event("ready", {"workers": self._count})
        notifier.tell("READY=1")

    async def _watch_files(self) -> None:
        """Replace the workers when a file changes."""
        if not self._reload:
            return
        sources = await asyncio.to_thread(self._sources, Path.cwd())
        while True:
            await asyncio.sleep(_FILES)
            if await asyncio.to_thread(sources.changed):
                self._output.notice("a file changed: the workers are replaced")
                self._output.event("reloading", {})
                for worker in self._workers:
                    worker.again = True
                    worker.tell("stop")
                self._woken.set()
                self._woken.clear()

    # -- a worker

    async def _keep(self, worker: _Worker) -> None:
        loop, pause = asyncio.get_running_loop(), _PAUSE
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run_one(worker)
            told = Status.read(worker.path)
            worker.has_worked |= told.state != STARTING
            again = worker.again or (told.state == ENDED and code >= 0)
            if code == ExitCode.USAGE and told.state != READY and not self._reload and not self._stopping.is_set():
                # It has said why. It would be the same each time.
                self._code = ExitCode.USAGE
                self._end("stop", "the app cannot be loaded")
            elif self._stopping.is_set():
                if code != ExitCode.DONE and self._code == ExitCode.DONE:
                    self._code = ExitCode.NOT_DELIVERED
                    self._died(worker, code, None)
            elif code == ExitCode.USAGE and told.state != READY and not again:
                await self._woken.wait()  # the file has to be changed first
            elif not again:
                pause = _PAUSE if loop.time() - began > _STEADY else pause
                self._died(worker, code, pause)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                pause = min(_LONGEST, 2 * pause)

    async def _run_one(self, worker: _Worker) -> int:
        """Run one process to its end; return its exit code, below 0 for a signal."""
        Status.create(worker.path)
        worker.again = False  # it starts with the files as they are now
        options = replace(self._options, number=worker.number, status=str(worker.path))
        program = Program("run", "redpoll.cli.run.child", options.dump(), prints=True)
        async with program:
            worker.program = program
            try:
                if self._stopping.is_set() or worker.again:
                    # It was told while there was no process to hear it.
                    program.tell("stop\n")
                return await program.wait()
            finally:
                worker.program = None

    def _died(self, worker: _Worker, code: int, pause: float | None) -> None:
        told = Status.read(worker.path)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        work = f"; {counted(told.running, 'task')} running, the last one begun: {told.last}" if told.running else ""
        then = "" if pause is None else f"; it is started anew in {pause:g} s"
        self._output.notice(f"worker {worker.number} {how}{work}{then}")
        self._output.event(
            "died", {"worker": worker.number, "code": code, "running": told.running, "last": told.last or None}
        )


async def _breathe(notifier: Notifier) -> None:
    """Send the signs of life that systemd wants."""
    while notifier.every is not None:
        notifier.tell("WATCHDOG=1")
        await asyncio.sleep(notifier.every)
