"""Handlers that processes import."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from redpoll.bus import Requeue, current_context
from redpoll.errors import DeadLettered, TaskRejected

_left: list[Any] = []


def compute(task: Any) -> Any:
    """Do what the data says."""
    match task.data:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "pid":
            return os.getpid()
        case "raise":
            raise ValueError("no")
        case "requeue":
            if task.tries == 1 and not Path(task.headers["flag"]).exists():
                Path(task.headers["flag"]).touch()
                raise Requeue
            return "second"
        case "reject":
            raise TaskRejected(reason="not mine")
        case "dead":
            raise DeadLettered(reason="hopeless")
        case "object":
            return object()
        case "progress":
            return [task.progress(number) for number in range(3)]
        case "about":
            return [task.id, task.queue, task.attempt, task.tries, task.left, task.cancelled, task.lost]
        case "threads":
            threads = [threading.Thread(target=_report, args=(task,)) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        case "leave":
            _left.append(task)
        case "left":
            return _left.pop().progress("late")
        case "sleep":
            task.progress("begun")
            threading.Event().wait()
        case "context":
            context = current_context()
            return dict(context.headers), context.left
        case "large":
            return len(task.headers), b"x" * 200_000
        case "system exit":
            raise SystemExit
    return task.data


def _report(task: Any) -> None:
    for _ in range(100):
        task.progress(b"x" * 40_000)
