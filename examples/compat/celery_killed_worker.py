"""Celery on a hub: a worker is killed with the tasks that it has taken, and another one does them.

The hub and the workers are processes of this program; elsewhere they are `redpoll hub --data DIR` and
`celery -A tasks worker`.

Prints:

    8 tasks taken by a worker, 2 of them begun
    killed
    8 tasks done by another one
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery

import redpoll.compat.celery  # noqa: F401  # it makes redpoll:// known to Celery

HUB = os.environ.get("HUB", "redpoll://127.0.0.1:5683")
FOLDER = Path(os.environ.get("FOLDER", "."))
app = Celery("tasks", broker=HUB, backend=HUB)
# A task is acknowledged when it is done, and not when it begins: Celery's own switches for work that must not be lost.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=True)


@app.task(name="work")  # type: ignore[untyped-decorator]
def work(number: int) -> int:
    """Take as long as the program waits; return the process of the worker."""
    (FOLDER / f"begun-{number}-{os.getppid()}").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return os.getppid()


def until(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not reached():
        time.sleep(0.02)


def start(*command: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a Python of this environment, without what it prints."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    where: dict[str, Any] = {"cwd": Path(__file__).parent, "env": {**os.environ, **env}}
    return subprocess.Popen([sys.executable, "-m", *command], **where, **quiet)  # noqa: S603  # our own


def main() -> None:
    """Submit tasks, kill the worker that has them, and start another one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as name:
        folder, hub = Path(name), f"redpoll://127.0.0.1:{port}"
        (folder / "hub").mkdir()
        worker = ["celery", "-A", Path(__file__).stem, "worker", "-c", "2", "-n"]
        env = {"HUB": hub, "FOLDER": name}
        running = [start("redpoll", "hub", "--data", str(folder / "hub"), "--port", port)]
        app.conf.update(broker_url=hub, result_backend=hub)
        until(lambda: socket.socket().connect_ex(("127.0.0.1", int(port))) == 0)
        results = [work.delay(number) for number in range(8)]
        running.append(first := start(*worker, "first@here", **env))
        until(lambda: len(list(folder.glob("begun-*"))) == 2)
        print("8 tasks taken by a worker, 2 of them begun")
        os.killpg(first.pid, signal.SIGKILL)
        print("killed")
        running.append(start(*worker, "second@here", **env))
        (folder / "go").touch()
        workers = {result.get(timeout=30) for result in results}
        assert first.pid not in workers
        print(len(results), "tasks done by another one")
        app.backend.close()
        app.pool.force_close_all()
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


if __name__ == "__main__":
    main()
