"""An end that is several processes: each takes its part of every job, and the job is done when all have done theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.control import Control, Fields, arguments

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

STOP_TIMEOUT = 5.0


class Worker:
    """One process; it stops at the end of its input, which comes when this process ends too."""

    def __init__(self, module: str, options: Fields) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.ends.{module}", "worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=STOP_TIMEOUT if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def write(self, job: Fields) -> None:
        """Give it a job."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def read(self) -> Fields:
        """Return its next answer."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise ConnectionError(f"a worker ended with exit code {self._process.wait(STOP_TIMEOUT)}")
        answer: Fields = json.loads(line)
        return answer


def main() -> None:
    """Run as many workers as the driver asked for, and give each its jobs."""
    role, options = arguments()
    control = Control()
    with ExitStack() as stack:
        workers: list[Worker] = []
        for _ in range(options["workers"]):
            workers.append(stack.enter_context(Worker(options["worker"], options)))
            address = workers[-1].read()["address"]
            # The first worker says where the others are found, unless this end was told.
            options.setdefault("address", address)
        control.write(address=options["address"])
        for job in control.jobs():
            for worker in workers:
                worker.write(job)
            for worker in workers:
                worker.read()
            if role == "server":
                control.write(begun=True)
            control.write(finished=max(worker.read()["finished"] for worker in workers))


if __name__ == "__main__":
    main()
