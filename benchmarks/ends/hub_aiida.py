"""Rounds of 100 tasks by aiida-core's own broker, which writes a file for each task and syncs none."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any

from benchmarks.control import Control, arguments
from benchmarks.ends.hub_rounds import play, stand_by


class OnAiida:
    """Tasks of aiida-core's communicator, which has one queue."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def send(self, bodies: list[bytes]) -> None:
        """Send each, as text, for it writes JSON; nothing confirms it."""
        for body in bodies:
            self._communicator.task_send(body.decode(), no_reply=True)

    def get(self, count: int) -> None:
        """Subscribe until so many were taken."""
        left, done = count, threading.Event()

        def subscriber(_: object, task: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        identifier = self._communicator.add_task_subscriber(subscriber)
        done.wait()
        self._communicator.remove_task_subscriber(identifier)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    os.environ["AIIDA_PATH"] = options["folder"]  # where it writes its settings when it is imported
    if role == "server":
        from aiida.brokers.zeromq.server import ZeromqBrokerServer

        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            server = ZeromqBrokerServer(f"{folder}/tasks", f"{folder}/sockets")
            server.start()
            threading.Thread(target=server.run_forever, daemon=True).start()
            control.write(address=server.router_endpoint)
            stand_by(control)
        return
    from aiida.brokers.zeromq.communicator import ZeromqCommunicator

    with ZeromqCommunicator(options["address"]) as communicator:
        control.write(address=None)
        play(control, OnAiida(communicator))


if __name__ == "__main__":
    main()
