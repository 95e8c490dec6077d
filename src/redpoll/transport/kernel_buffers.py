"""How much the system holds of a link while a long body goes over it.

Left to itself it holds megabytes at either end, and whatever is sent beside the body waits behind them.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["NEAR", "UNREAD", "UNSENT", "KernelBuffers"]

#: Bytes of a link with a long body that the system holds at most which are not sent yet.
UNSENT = 64 * 1024

#: The receive buffer of such a link, bytes; Linux takes twice as many, for what it notes of them.
UNREAD = 128 * 1024

#: Round-trip time in seconds, the shortest that was seen, up to which such a buffer keeps a link busy: 10 Gbit/s with the
#: longest. What is further away gets the one that the system thinks best.
NEAR = 0.0002

# Linux's own. The limit of what is not sent; the lock that a receive buffer of a set size has, and that can be taken off
# again, since Linux 5.14; and where in tcp_info the shortest round-trip time is, in microseconds, since 4.6.
_UNSENT: int = getattr(socket, "TCP_NOTSENT_LOWAT", 0)
_BUFFER_LOCK = 72
_INFO: int = getattr(socket, "TCP_INFO", 0)
_ROUND_TRIP = struct.Struct("=148xI")


class KernelBuffers:
    """Keeps what the system holds of one TCP socket small, and lets it grow again.

    Where the system has no such limits, or the link is not TCP, nothing is done.
    """

    __slots__ = ("_narrow", "_received_long", "_sent_long", "_socket")

    def __init__(self, sock: socket.socket | None) -> None:
        tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
        self._socket = sock if tcp and _UNSENT and _INFO else None
        self._sent_long = False
        self._received_long = False
        self._narrow = False

    def sending(self, long: bool) -> None:
        """Say whether what is written next is of a long body."""
        if long is not self._sent_long and self._socket is not None:
            self._sent_long = long
            # 0 is the system's own choice again.
            self._set(self._socket, socket.IPPROTO_TCP, _UNSENT, UNSENT if long else 0)

    def receiving(self, long: bool) -> None:
        """Say whether a long body is under way."""
        if long is self._received_long or self._socket is None:
            return
        self._received_long = long
        if not long:
            if self._narrow:
                self._narrow = False
                self._set(self._socket, socket.SOL_SOCKET, _BUFFER_LOCK, 0)
        elif _may_narrow(self._socket):
            self._narrow = True
            self._set(self._socket, socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD)

    def _set(self, sock: socket.socket, level: int, option: int, value: int) -> None:
        try:
            sock.setsockopt(level, option, value)
        except OSError:
            # The connection is gone, or this system knows the name and not the thing: it holds what it likes.
            self._socket = None


def _may_narrow(sock: socket.socket) -> bool:
    """Whether the other end is so near that a small buffer is enough, and the system can be told to enlarge it again."""
    try:
        sock.getsockopt(socket.SOL_SOCKET, _BUFFER_LOCK)
        info = sock.getsockopt(socket.IPPROTO_TCP, _INFO, _ROUND_TRIP.size)
    except OSError:
        return False
    return len(info) == _ROUND_TRIP.size and _ROUND_TRIP.unpack(info)[0] * 1e-6 <= NEAR
