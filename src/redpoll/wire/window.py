"""The windows of a link: the places that this end uses at the other end, and the credit that it owes for its own.

Nothing else counts them. A link asks, and writes the frames. What is resent over a link has a pace besides.
"""

from __future__ import annotations

from struct import Struct

from redpoll.errors import ProtocolError
from redpoll.wire.capabilities import WINDOW_UNIT

__all__ = ["RESEND_BYTES", "RESEND_MESSAGES", "ReceiveWindow", "ResendPace", "SendWindow"]

#: Size of the first step of what is resent over a link: messages, and bytes before the last of them.
RESEND_MESSAGES = 4
RESEND_BYTES = 8 * 1024

_CREDIT = Struct("!IQ4x")


class SendWindow:
    """The window that the other end announced, and what of it is used.

    Attributes:
        limit: Maximum number of open messages; 0 until the other end has announced it.
        limit_bytes: Maximum size of open messages, in bytes.
        used: Number of open messages, acknowledged or not. Those sent before an announcement count too.
        used_bytes: Size of the open messages, in bytes.
        oversized: Size of the open message that is larger than the window, of which there is one at a time, beside
            others; 0 without one.
    """

    __slots__ = ("limit", "limit_bytes", "oversized", "used", "used_bytes")

    def __init__(self) -> None:
        self.limit = self.limit_bytes = self.used = self.used_bytes = self.oversized = 0

    def announce(self, limit: int, limit_bytes: int) -> None:
        """Apply the window that the other end announced."""
        self.limit = limit
        self.limit_bytes = limit_bytes
        if self.oversized <= limit_bytes:
            # It fits the new window, and counts like the others.
            self.oversized = 0

    def admits_beyond(self, size: int) -> bool:
        """Return True if a message that exceeds the free bytes may be sent nevertheless."""
        limit = self.limit_bytes
        free = self.free_bytes()
        if size > limit:
            return free > 0 and not self.oversized
        if self.oversized:
            return size <= free
        # The other end may hold back credit for up to a quarter of the window, so that much may seem used.
        return size <= free or free * 4 >= limit * 3

    def free_bytes(self) -> int:
        """Return the free bytes, the message that is larger than the window not counted."""
        self._update_oversized()
        return self.limit_bytes - (self.used_bytes - self.oversized)

    def _update_oversized(self) -> None:
        # The oversized message ended: those beside it fit the window, so they are smaller together.
        if self.used_bytes < self.oversized:
            self.oversized = 0

    def take(self, size: int) -> None:
        """Take a place for a message."""
        if self.oversized:
            self._update_oversized()
        if size > self.limit_bytes and self.limit_bytes:
            self.oversized = size
        self.used += 1
        self.used_bytes += size

    def take_many(self, count: int, size: int) -> None:
        """Take places for small messages."""
        self.used += count
        self.used_bytes += size

    def free(self, count: int, size: int) -> None:
        """Free the places of messages that ended."""
        self.used -= count
        self.used_bytes -= size

    def credited(self, body: bytes, acknowledged: int) -> None:
        """Apply a credit frame, which frees places of unacknowledged messages only.

        Args:
            body: Body of the frame.
            acknowledged: Number of open acknowledged messages.

        Raises:
            ProtocolError: It frees more than is used.
        """
        messages, size = _CREDIT.unpack(body)
        if messages > self.used - acknowledged or size > self.used_bytes:
            raise ProtocolError(f"credit for {messages} messages of {size} bytes exceeds what was sent")
        self.free(messages, size)


class ResendPace:
    """The step in which messages are resent over a link; it doubles each time that all of it has arrived.

    Over links that are lost after some kilobytes, one burst of all messages would fill each link and confirm nothing: the
    outcomes of the first ones, which the other end has, would be lost with it.

    Attributes:
        ping: Number of the ping behind a whole step, whose answer is pending; None if the step is not used up.
        due: Whether that ping is still to be written.
    """

    __slots__ = ("_bytes", "_messages", "_used", "_used_bytes", "due", "ping")

    def __init__(self) -> None:
        self._messages, self._bytes = RESEND_MESSAGES, RESEND_BYTES
        self._used = self._used_bytes = 0
        self.ping: int | None = None
        self.due = False

    def resent(self, serial: int, size: int) -> None:
        """Count a message; the serial of the last one of a step is the number of the ping behind it."""
        self._used += 1
        self._used_bytes += size
        if self._used >= self._messages or self._used_bytes >= self._bytes:
            self.ping = serial
            self.due = True

    def arrived(self, ping: int) -> None:
        """Begin the next step if a ping that was answered is the one behind this one."""
        if ping == self.ping:
            self._messages *= 2
            self._bytes *= 2
            self._used = self._used_bytes = 0
            self.ping = None


class ReceiveWindow:
    """The window that this end announced, and the credit for unacknowledged messages that ended, held back in parts.

    Attributes:
        messages: Number of messages that ended since the last credit frame.
        size: Size of these, in bytes.
    """

    __slots__ = ("_due", "_due_bytes", "messages", "size")

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.messages = self.size = 0
        self.announce(limit, limit_bytes)

    def announce(self, limit: int, limit_bytes: int) -> None:
        """Hold back a quarter of this window; of its bytes as announced, which are rounded."""
        self._due = max(1, limit // 4)
        self._due_bytes = max(1, limit_bytes // WINDOW_UNIT * WINDOW_UNIT // 4)

    def hold_nothing(self) -> None:
        """Hold back no credit: it is due with each message."""
        self._due = self._due_bytes = 1

    def ended(self, messages: int, size: int) -> bool:
        """Count unacknowledged messages that ended, and return True if a credit frame is due."""
        self.messages = messages = self.messages + messages
        self.size = size = self.size + size
        return messages >= self._due or size >= self._due_bytes

    def take_credit(self) -> bytes:
        """Return the body of the credit frame for what ended since the last one."""
        body = _CREDIT.pack(self.messages, self.size)
        self.messages = self.size = 0
        return body
