"""The first ØMQ Python extension's names, for plain threads: `from redpoll.wiring import zmq as pyzmq`."""

from redpoll.wiring.zmq.constants import (
    MESSAGE_DATA,
    MESSAGE_GAP,
    NO_LIMIT,
    NO_SWAP,
    SCOPE_GLOBAL,
    SCOPE_LOCAL,
    SCOPE_PROCESS,
    STYLE_DATA_DISTRIBUTION,
    STYLE_LOAD_BALANCING,
)
from redpoll.wiring.zmq.objects import ZMQ, Zmq
from redpoll.wiring.zmq.wires import Wires

__all__ = [
    "MESSAGE_DATA",
    "MESSAGE_GAP",
    "NO_LIMIT",
    "NO_SWAP",
    "SCOPE_GLOBAL",
    "SCOPE_LOCAL",
    "SCOPE_PROCESS",
    "STYLE_DATA_DISTRIBUTION",
    "STYLE_LOAD_BALANCING",
    "ZMQ",
    "Wires",
    "Zmq",
]
