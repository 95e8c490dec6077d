"""One link through a broker: what is to be read, what may be sent."""

from __future__ import annotations

from enum import Enum

from redpoll.nq.mqtt.payloads import Kind, pack
from redpoll.transport.carried import CarriedTransport

__all__ = ["CHARGE", "Flow", "Judgement", "MqttLink", "charge"]

#: A payload counts for at least so many bytes: a broker holds only so many payloads for who is slow, of whatever size.
CHARGE = 16 * 1024


def charge(size: int) -> int:
    """What a payload with so many bytes of a link counts for."""
    return max(size, CHARGE)


class Judgement(Enum):
    """What a payload is, by its number."""

    NEXT = "next"
    DOUBLED = "doubled"  # it was read already: it is dropped
    MISSED = "missed"  # one before it is missing: the link is over


class Flow:
    """Counts one link's payloads, both ways.

    Attributes:
        sent: Payloads that went out.
        spent: What they count for.
        allowed: What they may count for.
        received: Payloads that came.
        told: What the other end was told that it may send.
    """

    __slots__ = ("_came", "_read", "allowed", "received", "sent", "spent", "told")

    def __init__(self) -> None:
        self.sent = 0
        self.spent = 0
        self.allowed = 0
        self.received = 0
        self.told = 0
        #: What came, and what was read of that, as `charge` counts.
        self._came = 0
        self._read = 0

    @property
    def open(self) -> bool:
        """Whether a payload may be sent now."""
        return self.spent < self.allowed

    def number(self, size: int) -> int:
        """Send one more, and return its number."""
        number = self.sent
        self.sent += 1
        if size:
            self.spent += charge(size)
        return number

    def judge(self, number: int) -> Judgement:
        """Say what one is that came; the next one counts."""
        if number == self.received:
            self.received += 1
            return Judgement.NEXT
        return Judgement.DOUBLED if number < self.received else Judgement.MISSED

    def allow(self, allowed: int) -> None:
        """The other end allows so much; what it allowed before stays."""
        self.allowed = max(self.allowed, allowed)

    def came(self, size: int) -> bool:
        """So many bytes came in one payload; False if the other end was not allowed another one."""
        if size:
            if self._came >= self.told:
                return False
            self._came += charge(size)
        return True

    def read(self) -> None:
        """All that came was read."""
        self._read = self._came

    def tell(self, window: int) -> int:
        """What the other end is told now: that it may send `window` more than was read."""
        self.told = max(self.told, self._read + window)
        return self.told

    def owes(self, window: int) -> bool:
        """Whether the other end may send so much more than it knows that it has to be told."""
        return self._read + window - self.told >= window // 4


class MqttLink:
    """One link: its key, where its payloads go, its flow, and its transport once it is open.

    Attributes:
        key: Its random name.
        client: The client whose link it is, as its topics name it.
        topic: Where its payloads go.
        flow: Its counters.
        transport: For its protocol; None while it is being made.
        leaving: Whether its end is being told to the other side.
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
        """Make a payload without bytes."""
        number = 0 if kind in (Kind.OPEN, Kind.ACCEPT) else self.flow.number(0)
        return pack(kind, self.key, number, allowed)
