"""Rounds of 100 tasks through a hub, or RabbitMQ, from a thread; and how such rounds are timed, for all libraries."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import redpoll
import redpoll.blocking
from benchmarks.control import Control, Fields, arguments, now, run_async

QUEUE = "rounds"
ROUND = 100


class Side(Protocol):
    """What a library does in a round."""

    def send(self, bodies: list[bytes]) -> None:
        """Send each; return when the last one is confirmed, where that is what the library does."""

    def get(self, count: int) -> None:
        """Take so many from the queue with a subscriber, and be rid of them."""


def play(control: Control, side: Side) -> None:
    """Do rounds, of which the time of sending, of getting, or of both counts."""
    for job in control.jobs():
        bodies = [b"R" * job["size"]] * ROUND
        rounds = max(1, job["count"] // ROUND)
        sending = getting = 0.0
        for _ in range(rounds):
            sending += _timed(partial(side.send, bodies))
            getting += _timed(partial(side.get, ROUND))
        taken = sending * ("send" in job["work"]) + getting * ("get" in job["work"])
        control.write(started=0.0, finished=taken, count=rounds * ROUND)


def _timed(do: Callable[[], object]) -> float:
    started = now()
    do()
    return now() - started


def stand_by(control: Control) -> None:
    """Answer as the end of a server that needs nothing more."""
    for _ in control.jobs():
        control.write(begun=True)
        control.write(finished=0.0)


class OnTheHub:
    """Tasks one by one, or a round at once."""

    def __init__(self, bus: Any, queue: str, *, at_once: bool, slots: int) -> None:
        self._tasks = bus.tasks
        self._queue = queue
        self._at_once = at_once
        self._slots = slots

    def send(self, bodies: list[bytes]) -> None:
        """Submit each; nobody asks for its result."""
        if self._at_once:
            self._tasks.submit_many(bodies, self._queue, no_reply=True)
            return
        for body in bodies:
            self._tasks.submit(body, self._queue, no_reply=True)

    def get(self, count: int) -> None:
        """Run a worker with a plain function, until so many are done and that is recorded."""
        left, done = count, threading.Event()

        def handler(task: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        with self._tasks.worker(handler, self._queue, concurrency=self._slots):
            done.wait()


async def serve(control: Control, options: Fields) -> None:
    """Be the hub, where the row has no broker, until the input ends."""
    if "broker" in options:
        control.write(address=options["broker"])
        stand_by(control)
        return
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        async with redpoll.Hub(folder, port=0) as hub:
            control.write(address=hub.url)
            async for _ in control.jobs_async():
                control.write(begun=True)
                control.write(finished=0.0)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        run_async(serve(control, options), options["loop"])
        return
    own = options.get("connect", {})
    # A queue of each format is another one.
    queue = f"{QUEUE}.{own['speak']}" if own else QUEUE
    with redpoll.blocking.connect(options["address"], **own) as bus:
        bus.queues.declare(queue)
        control.write(address=None)
        play(control, OnTheHub(bus, queue, at_once=options["at_once"], slots=options.get("slots", 1)))


if __name__ == "__main__":
    main()
