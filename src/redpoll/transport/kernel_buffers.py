"""Limits of the kernel's socket buffers while a long body is transferred.

By default the kernel buffers megabytes at either end, and whatever is sent beside the body waits behind them.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["NEAR", "UNREAD", "UNSENT", "KernelBuffers"]

#: Maximum unsent bytes that the kernel buffers for a link with a long body.
UNSENT = 64 * 1024

#: Size in bytes of the receive buffer of such a link; Linux doubles it, for its own overhead.
UNREAD = 128 * 1024

#: Maximum round-trip time in seconds (the minimum measured) at which such a buffer keeps a link busy: 10 Gbit/s at this
#: time. Farther links get the size that the kernel chooses.
NEAR = 0.0002

# Linux only: the limit of unsent bytes; the lock of a receive buffer of a set size, which can be removed again since
# Linux 5.14; and the offset of the minimum round-trip time in tcp_info, in microseconds, since 4.6.
_UNSENT: int = getattr(socket, "TCP_NOTSENT_LOWAT", 0)
_BUFFER_LOCK = 72
_INFO: int = getattr(socket, "TCP_INFO", 0)
_ROUND_TRIP = struct.Struct("=148xI")


class KernelBuffers:
    """Limits the kernel's buffers of one TCP socket, and removes the limits again.

    Does nothing where the system has no such limits, or the link is not TCP.
    """

    __slots__ = ("_narrow", "_received_long", "_sent_long", "_socket")

    def __init__(self, sock: socket.socket | None) -> None:
        tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
        self._socket = sock if tcp and _UNSENT and _INFO else None
        self._sent_long = False
        self._received_long = False
        self._narrow = False

    def sending(self, long: bool) -> None:
        """Set whether the next written bytes belong to a long body."""
        if long is not self._sent_long and self._socket is not None:
            self._sent_long = long
            # 0 restores the kernel's own choice.
            self._set(self._socket, socket.IPPROTO_TCP, _UNSENT, UNSENT if long else 0)

    def receiving(self, long: bool) -> None:
        """Set whether a long body is being received."""
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
            # The connection is gone, or the kernel lacks the option: leave its buffers alone.
            self._socket = None


def _may_narrow(sock: socket.socket) -> bool:
    """Return True if the peer is so near that a small buffer suffices, and the kernel can enlarge it again."""
    try:
        sock.getsockopt(socket.SOL_SOCKET, _BUFFER_LOCK)
        info = sock.getsockopt(socket.IPPROTO_TCP, _INFO, _ROUND_TRIP.size)
    except OSError:
        return False
    return len(info) == _ROUND_TRIP.size and _ROUND_TRIP.unpack(info)[0] * 1e-6 <= NEAR
