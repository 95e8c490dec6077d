"""A bus for threads. Its package stands above this one, and is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redpoll.bus.threads import BlockingBus

__all__ = ["connect"]


def connect(url: str, **options: Any) -> BlockingBus:
    """Make a bus for threads; nothing is connected before it is entered.

    ``with redpoll.blocking.connect("memory://") as bus: ...``

    Args:
        url: Which engine, and where: as for `redpoll.connect`.
        **options: Those of `redpoll.connect`.

    Raises:
        ConfigError: As `redpoll.connect`.
    """
    bus: BlockingBus = import_module("redpoll.bus.threads").BlockingBus.connect(url, **options)
    return bus
