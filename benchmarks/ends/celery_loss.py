"""Celery's workers that are killed: the client end runs the broker and two workers, the server end stands by."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from celery import Celery

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.app_costs import children
from benchmarks.ends.app_tasks import BROKER, broker, working
from benchmarks.ends.hub_rounds import stand_by

#: The seconds of Redis's visibility timeout, which are 3,600 by default.
VISIBILITY = 10
WORKER = ["celery", "-A", "benchmarks.ends.celery_loss", "worker", "--pool", "prefork", "--concurrency", "1"]
#: Seconds to wait for a worker, or for a task to begin.
PATIENCE = 120.0


def make(url: str) -> Celery:
    """Make the application of a worker, or of this end."""
    if url.startswith("redpoll:"):
        import redpoll.compat.celery  # noqa: F401  # it registers the transport and the backend
    made = Celery("loss", broker=url, backend=url)
    made.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)
    if url.startswith("redis:"):
        made.conf.broker_transport_options = {"visibility_timeout": VISIBILITY}
    made.task(name="hold")(hold)
    return made


def hold(log: str) -> None:
    """Note the process and when it began; end when there is another line behind this one's."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {os.getppid()} {now()}\n")
    while len(begun(log)) < 2:
        time.sleep(0.01)


def begun(log: str) -> list[tuple[int, int, float]]:
    """Return the begins of a task: the processes of child and worker, and the time."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [(int(child), int(worker), float(when)) for child, worker, when in map(str.split, lines)]


def wait_begun(log: str, count: int) -> tuple[int, int, float]:
    """Return the begin of a task, when it has come."""
    end = now() + PATIENCE
    while len(begun(log)) < count:
        if now() > end:
            raise TimeoutError(f"the task did not begin within {PATIENCE:g} s")
        time.sleep(0.01)
    return begun(log)[count - 1]


def lose(app: Celery, url: str, log: str, what: str) -> float:
    """Kill a worker, or its child, with a task; return the seconds until that begins again."""
    with ExitStack() as stack:
        for name in ("one", "two"):
            stack.enter_context(working([*WORKER, "-n", f"{name}@here"], url))
        end = now() + PATIENCE
        while len(app.control.ping(timeout=1)) < 2:
            if now() > end:
                raise TimeoutError("the workers did not start")
        result = app.signature("hold", args=(log,)).delay()
        child, worker, _ = wait_begun(log, 1)
        lost = now()
        for process in [child] if what == "child" else [worker, *children(worker)]:
            os.kill(process, signal.SIGKILL)
        _, _, again = wait_begun(log, 2)
        result.get(timeout=PATIENCE)
    return again - lost


def work(control: Control, options: Fields) -> None:
    """Lose so many workers in each job."""
    with broker(options) as url:
        app = make(url)
        control.write(address=None)
        for number, job in enumerate(control.jobs()):
            logs = [f"{options['folder']}/{os.getpid()}-{number}-{each}" for each in range(job["count"])]
            control.write(taken=[lose(app, url, log, job["lost"]) for log in logs])
        app.close()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        control.write(address=None)
        stand_by(control)
    else:
        work(control, options)


if BROKER in os.environ:
    app = make(os.environ[BROKER])
if __name__ == "__main__":
    main()
