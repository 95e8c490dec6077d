"""Which server serves a prefix: one claims it, another one is found out."""

from __future__ import annotations

import secrets

from redpoll.nq.mqtt.payloads import KEY, NOBODY, Kind, Payload, pack

__all__ = ["Office"]

#: Bytes of a key that count the connections.
_COUNT = 2


class Office:
    """One server's claim to a prefix; it decides, and its owner publishes.

    A claim is a number and the server's random key. Of two that serve, the one with the higher number stays, with equal
    numbers the one with the smaller key. Who takes over from one that is gone, or stands still, claims the next number.

    Attributes:
        key: This server's, another one with each connection: the will of one before may come late.
        echoed: Whether the probe of this connection came back: what the broker kept came before it.
    """

    def __init__(self) -> None:
        self._name = secrets.token_bytes(KEY - _COUNT)
        self._connections = 0
        self._number = 1
        #: The highest number that was seen of others.
        self._seen = 0
        self._rival = False
        self.echoed = False
        self.key = NOBODY

    def connected(self) -> None:
        """A connection to the broker is made: nothing is known of others."""
        self._connections = (self._connections + 1) % 2 ** (8 * _COUNT)
        self.key = self._name + self._connections.to_bytes(_COUNT, "big")
        self._rival = self.echoed = False

    @property
    def claim(self) -> bytes:
        """What is published, and kept by the broker, while this one serves."""
        return pack(Kind.CLAIM, self.key, self._number)

    @property
    def will(self) -> bytes:
        """What is published by the broker if this one is gone."""
        return pack(Kind.GONE, self.key)

    @property
    def probe(self) -> bytes:
        """Asks whoever serves to claim that again."""
        return pack(Kind.PROBE, self.key)

    def has_rival(self) -> bool:
        """Whether another one claimed, since the connection was made or this was asked, what this one cannot have."""
        rival, self._rival = self._rival, False
        return rival

    def heard(self, payload: Payload | None, *, serving: bool) -> bool:
        """Take note of what was published where servers claim.

        Args:
            payload: What it was.
            serving: Whether this one has claimed the prefix; before that every other claim is a rival's.

        Returns:
            Whether this one, if it serves, has to claim again, so that the broker keeps that.
        """
        if payload is not None and payload.kind is Kind.PROBE and payload.link == self.key:
            self.echoed = True
            return False
        if payload is None or payload.kind is not Kind.CLAIM:
            return True
        if payload.link[:-_COUNT] == self._name:
            return False
        self._seen = max(self._seen, payload.number)
        if serving and (payload.number, self.key) < (self._number, payload.link):
            return True
        self._rival = True
        return False

    def take_over(self) -> None:
        """Whoever claimed the prefix does not answer: claim more than that one did."""
        self._number = min(self._seen + 1, 2**64 - 1)
