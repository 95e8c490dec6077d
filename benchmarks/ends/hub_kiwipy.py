"""Rounds of 100 tasks by kiwiPy; the server end runs RabbitMQ, where the row has none."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from kiwipy.rmq import RmqThreadCommunicator

from benchmarks.control import Control, arguments
from benchmarks.ends.hub_rounds import QUEUE, play, stand_by
from benchmarks.rabbitmq import RabbitMQ


class OnKiwiPy:
    """Tasks of one queue of kiwiPy's communicator."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def send(self, bodies: list[bytes]) -> None:
        """Send each; each call waits until RabbitMQ has confirmed it."""
        for body in bodies:
            self._queue.task_send(body, no_reply=True)

    def get(self, count: int) -> None:
        """Subscribe until so many were taken."""
        left, done = count, threading.Event()

        def subscriber(_: object, task: bytes) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        identifier = self._queue.add_task_subscriber(subscriber)
        done.wait()
        self._queue.remove_task_subscriber(identifier)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server" and "broker" in options:
        control.write(address=options["broker"])
        stand_by(control)
        return
    if role == "server":
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder, RabbitMQ(Path(folder)) as server:
            control.write(address=server.url)
            stand_by(control)
        return
    with RmqThreadCommunicator.connect(connection_params={"url": options["address"]}) as communicator:
        control.write(address=None)
        play(control, OnKiwiPy(communicator.task_queue(f"{QUEUE}.kiwipy")))


if __name__ == "__main__":
    main()
