"""Results under the ids of other libraries, and the bus of a process, without these libraries."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from redpoll.bus import QueueSpec
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Envelope
from redpoll.bus.process_bus import ProcessBus
from redpoll.compat.results import leave
from redpoll.errors import NoRoute, PayloadTooLarge
from tests.blocking.support import interrupting, run_program
from tests.bus.engines.hub.support import running
from tests.node.support import PATIENCE


@pytest.mark.asyncio
async def test_watches_are_left_at_once() -> None:
    """Thousands of watches end together, not one after the other, and one that fails keeps no other open."""
    begun = asyncio.Event()
    closed: list[int] = []

    class Watch:
        def __init__(self, number: int) -> None:
            self.number = number

        async def close(self) -> None:
            if self.number == 2:
                begun.set()
            await begun.wait()
            closed.append(self.number)
            if self.number == 0:
                raise OSError("the hub is gone")

    with pytest.raises(OSError, match="the hub is gone"):
        await asyncio.wait_for(leave(cast("Any", [Watch(number) for number in range(3)])), PATIENCE)
    assert sorted(closed) == [0, 1, 2]


FORKED = """
import os, threading
from redpoll.bus.threads.resident import BusResident
from redpoll.bus.process_bus import ProcessBus

async def name(side):
    return id(side)

bus = ProcessBus("memory://", lambda bus: bus)
bus.run(name)
held, release = threading.Event(), threading.Event()

def hold():
    with bus._lock:
        held.set()
        release.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1], bus.entered)
else:
    # As soon as it is there, before any thread could ask for it.
    print(bus.entered, bus._lock.acquire(blocking=False))
    bus._lock.release()
    sides = []
    threads = [threading.Thread(target=lambda: sides.append(bus.run(name))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(len(sides), len(set(sides)), flush=True)
    bus.close()
    os._exit(0)
release.set()
bus.close()
"""


def test_a_forked_process_begins_anew_once() -> None:
    """A child has no bus, and no lock that a thread of its parent holds; threads that begin at once share the new bus."""
    done = run_program(FORKED, "-W", "ignore::DeprecationWarning")
    assert done.stdout.splitlines() == ["False True", "4 1", "0 True"], done.stderr


def test_an_interrupted_publish_is_withdrawn() -> None:
    """A thread that waits for a confirmation gets its error, or Ctrl-C: what waited for room is in no queue later."""
    with running() as hub:
        bus: ProcessBus[Engine] = ProcessBus(hub.url, lambda bus: bus.engine)

        def publish(text: bytes, queue: str = "q") -> None:
            bus.ask(lambda engine: engine.publish(Envelope("raw", text), queue=queue))

        try:
            bus.run(lambda engine: engine.declare(QueueSpec("q", max_length=1)))
            publish(b"first")
            with pytest.raises(NoRoute):
                publish(b"", "none")
            with pytest.raises(PayloadTooLarge):
                publish(bytes(bus.enter()[1].capabilities.max_body + 1))
            parked = lambda: any(client.parked for client in tuple(hub.hub._clients.values()))  # noqa: E731
            with interrupting(parked), pytest.raises(KeyboardInterrupt):
                publish(b"second")
            first = bus.run(lambda engine: engine.take("q", PATIENCE))
            assert first.envelope.body == b"first"
            assert bus.run(lambda _: first.ack())
            assert bus.run(lambda engine: engine.inspect("q")).ready == 0
            publish(b"third")
            assert bus.run(lambda engine: engine.inspect("q")).ready == 1
        finally:
            bus.close()
