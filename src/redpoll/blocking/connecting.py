"""`redpoll.blocking.connect`: makes a bus for threads. The package of the bus is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redpoll.bus.threads import BlockingBus

__all__ = ["connect"]


def connect(url: str, **options: Any) -> BlockingBus:
    """Make a bus for threads. It connects when its `with` block is entered.

    ``with redpoll.blocking.connect("memory://") as bus: ...``

    Args:
        url: The URL of the engine, as for `redpoll.connect`.
        **options: The options of `redpoll.connect`.

    Raises:
        ConfigError: As `redpoll.connect`.
    """
    bus: BlockingBus = import_module("redpoll.bus.threads").BlockingBus.connect(url, **options)
    return bus
