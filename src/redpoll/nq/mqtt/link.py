"""State of one link over a broker: its flow control and its transport."""

from __future__ import annotations

from redpoll.nq.mqtt.payloads import Kind, pack
from redpoll.transport.carried import CarriedTransport

__all__ = ["CHARGE", "Flow", "MqttLink", "charge"]

#: Minimum charge of a payload, in bytes: a broker limits the number of payloads that it holds for a slow client, of any
#: size.
CHARGE = 16 * 1024


def charge(size: int) -> int:
    """Return the charge of a payload with that many bytes of a link."""
    return max(size, CHARGE)


class Flow:
    """Counters of one link's payloads, both ways.

    Attributes:
        sent: Number of payloads sent.
        spent: Sum of their charges.
        allowed: Limit of that sum.
        received: Number of payloads received.
        told: Limit of the charges that was sent to the other end.
    """

    __slots__ = ("_came", "_read", "allowed", "received", "sent", "spent", "told")

    def __init__(self) -> None:
        self.sent = 0
        self.spent = 0
        self.allowed = 0
        self.received = 0
        self.told = 0
        #: Charges of the received payloads, and of those that were read.
        self._came = 0
        self._read = 0

    @property
    def open(self) -> bool:
        """True if a payload may be sent now."""
        return self.spent < self.allowed

    def number(self, size: int) -> int:
        """Count a sent payload, and return its number."""
        number = self.sent
        self.sent += 1
        if size:
            self.spent += charge(size)
        return number

    def missing(self, number: int) -> int:
        """Return how many payloads are missing before a received one, below 0 for a double; the next in order is counted."""
        missing = number - self.received
        if not missing:
            self.received += 1
        return missing

    def allow(self, allowed: int) -> None:
        """Raise the limit of what may be sent; a lower one has no effect."""
        self.allowed = max(self.allowed, allowed)

    def came(self, size: int) -> bool:
        """Count the bytes of a received payload; return False if the other end exceeded its limit."""
        if size:
            if self._came >= self.told:
                return False
            self._came += charge(size)
        return True

    def read(self) -> None:
        """Count all received payloads as read."""
        self._read = self._came

    def tell(self, window: int) -> int:
        """Return the other end's new limit: `window` more than was read."""
        self.told = max(self.told, self._read + window)
        return self.told

    def owes(self, window: int) -> bool:
        """Return True if the other end must be sent its new limit: it is a quarter of the window above the known one."""
        return self._read + window - self.told >= window // 4


class MqttLink:
    """One link: its key, topic, flow control, and its transport once it is open.

    Attributes:
        key: Its random name.
        client: Its client, as named in topics.
        topic: The topic to which its payloads are published.
        flow: Its counters.
        transport: The protocol's transport; None until the link is open.
        leaving: True while CLOSE is on its way to the other end.
    """

    __slots__ = ("client", "flow", "key", "leaving", "topic", "transport")

    def __init__(self, key: bytes, client: str, topic: str) -> None:
        self.key = key
        self.client = client
        self.topic = topic
        self.flow = Flow()
        self.transport: CarriedTransport | None = None
        self.leaving = False

    def say(self, kind: Kind, allowed: int = 0) -> bytes:
        """Return a payload without data."""
        number = 0 if kind in (Kind.OPEN, Kind.ACCEPT) else self.flow.number(0)
        return pack(kind, self.key, number, allowed)
