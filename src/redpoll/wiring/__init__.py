"""Exchanges and queues by name: `redpoll.Wiring` and what belongs to it."""

from redpoll.wiring.binding import Binding
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange, ExchangeStats
from redpoll.wiring.names import GLOBAL, LOCAL, NO_LIMIT, PROCESS, AtLimit, Gap, Limits, Scope, Style
from redpoll.wiring.queue import Queue, QueueStats
from redpoll.wiring.wiring import Wiring

__all__ = [
    "GLOBAL",
    "LOCAL",
    "NO_LIMIT",
    "PROCESS",
    "AtLimit",
    "Binding",
    "Exchange",
    "ExchangeStats",
    "Gap",
    "Limits",
    "Queue",
    "QueueStats",
    "Scope",
    "Style",
    "Wiring",
    "WiringEvents",
]
