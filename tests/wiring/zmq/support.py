"""What the tests of the old module share: a directory on the loop thread, and objects that are closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from redpoll import Address
from redpoll.blocking.loop_thread import enter
from redpoll.wiring import zmq as pyzmq
from redpoll.wiring.directory import Directory
from redpoll.wiring.zmq import Wires

__all__ = ["Resident", "address", "directory", "loop", "pair", "waits"]


class Resident:
    """Keeps the loop thread running."""

    async def evict(self, patience: float) -> None:
        """Nothing runs."""

    def stop(self, drain: float | None = 0) -> None:
        """Nothing runs."""

    def inherit(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def loop() -> Iterator[Callable[..., Any]]:
    """Keep the loop thread, for as long as a block; what calls a function there, and awaits what it returns."""
    resident = Resident()
    thread = enter(resident)
    try:
        yield thread.handover.run
    finally:
        thread.see_off(resident, lambda: resident.evict(0))


@contextlib.contextmanager
def directory(**options: Any) -> Iterator[str]:
    """Run a directory, for as long as a block; its address."""
    with loop() as run:
        running: Directory = run(lambda: Directory(**{"port": 0, **options}))
        run(running.start)
        try:
            yield str(running.address)
        finally:
            run(running.stop)


@contextlib.contextmanager
def pair(**options: Any) -> Iterator[tuple[pyzmq.ZMQ, int]]:
    """An object whose exchange is bound to its queue, and the exchange's number."""
    with pyzmq.ZMQ() as zmq:
        number = zmq.create_exchange("E", **options)
        zmq.create_queue("Q")
        zmq.bind("E", "Q")
        yield zmq, number


def address(zmq: Wires) -> Address:
    """Where an object listens."""
    wiring = zmq._resident._wiring
    assert wiring is not None
    return Address.parse(wiring.address)


def waits(zmq: Wires, count: int = 1) -> bool:
    """Whether so many threads wait for a message."""
    return len(zmq._resident.inbox._waiting) == count
