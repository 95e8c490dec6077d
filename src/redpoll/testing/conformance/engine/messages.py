"""Messages of the behaviours of engines."""

from __future__ import annotations

from typing import Any

from redpoll.bus import Outcome, OutcomeKind, Payloads, Receipt
from redpoll.bus.engine import Delivery, Engine
from redpoll.testing.conformance.frame import Recorder

__all__ = ["bodies", "pack", "result", "send", "unpack"]

_payloads = Payloads()
pack = _payloads.pack
unpack = _payloads.unpack


def result(value: Any = None) -> Outcome:
    """Return the outcome of a task with a result."""
    return Outcome(OutcomeKind.RESULT, pack(value))


async def send(engine: Engine, queue: str, value: Any = None, **options: Any) -> tuple[Receipt, Recorder]:
    """Publish a task; return its receipt, and the recorder that watches it."""
    recorder = Recorder()
    return await engine.publish(pack(value), queue=queue, watcher=recorder, **options), recorder


def bodies(deliveries: list[Delivery]) -> list[Any]:
    """Return the data of deliveries."""
    return [unpack(each.envelope) for each in deliveries]
