"""How much the system holds of a link while a long body goes over it.

Left to itself it holds megabytes at either end, and whatever is sent beside the body waits behind them.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["NEAR", "UNSENT", "WINDOW", "KernelBuffers"]

#: Bytes of a link with a long body that the system holds at most which are not sent yet, and which are not read yet.
UNSENT = 128 * 1024
WINDOW = 512 * 1024

#: Round-trip time in seconds up to which `WINDOW` bytes keep a link busy: 8 Gbit/s with the longest. What is further away
#: gets the window that the system thinks best.
NEAR = 0.0005

# The window grows by itself as bytes are read: it is set again after so many reads.
_READS = 8

# Linux's own: how the window is limited without taking back what was offered, and where in tcp_info the round-trip time is.
_UNSENT: int = getattr(socket, "TCP_NOTSENT_LOWAT", 0)
_WINDOW: int = getattr(socket, "TCP_WINDOW_CLAMP", 0)
_INFO: int = getattr(socket, "TCP_INFO", 0)
_ROUND_TRIP = struct.Struct("=68xI")
_UNLIMITED = 1 << 30


class KernelBuffers:
    """Keeps what the system holds of one TCP socket small, and lets it grow again.

    Where the system has no such limits, or the link is not TCP, nothing is done.
    """

    __slots__ = ("_reads", "_sent_long", "_socket")

    def __init__(self, sock: socket.socket | None) -> None:
        tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
        self._socket = sock if tcp and _UNSENT and _WINDOW and _INFO else None
        self._sent_long = False
        self._reads = 0

    def sending(self, long: bool) -> None:
        """Say whether what is written next is of a long body."""
        if long is not self._sent_long and self._socket is not None:
            self._sent_long = long
            # 0 is the system's own choice again.
            self._set(self._socket, _UNSENT, UNSENT if long else 0)

    def receiving(self, long: bool) -> None:
        """Say, after each read, whether a long body is under way."""
        if self._socket is None:
            return
        if not long:
            if self._reads:
                self._reads = 0
                self._set(self._socket, _WINDOW, _UNLIMITED)
        elif self._reads % _READS:
            self._reads += 1
        elif self._reads or _is_near(self._socket):
            self._reads += 1
            self._set(self._socket, _WINDOW, WINDOW)

    def _set(self, sock: socket.socket, option: int, value: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:
            # The connection is gone, or this system knows the name and not the thing: it holds what it likes.
            self._socket = None


def _is_near(sock: socket.socket) -> bool:
    """Whether the other end is so near that a small window is enough."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _INFO, _ROUND_TRIP.size)
    except OSError:
        return False
    return len(info) == _ROUND_TRIP.size and _ROUND_TRIP.unpack(info)[0] * 1e-6 <= NEAR
