"""A server's claim to a prefix: one server holds it, and a second one is detected."""

from __future__ import annotations

import secrets

from redpoll.nq.mqtt.payloads import KEY, NOBODY, Kind, Payload, pack

__all__ = ["LeadershipClaim"]

#: Bytes of a key that number the connections.
_COUNT = 2


class LeadershipClaim:
    """One server's claim to a prefix, without I/O: the listener publishes.

    A claim is a number and the server's random key. Of two servers, the one with the higher number stays, with equal
    numbers the one with the smaller key. A server that takes over from a lost or frozen one claims the next number.

    Attributes:
        key: This server's key, a new one for each connection, as the will of an earlier one may arrive late.
        echoed: True once the probe of this connection has returned; retained messages arrived before it.
    """

    def __init__(self) -> None:
        self._name = secrets.token_bytes(KEY - _COUNT)
        self._connections = 0
        self._number = 1
        #: Highest number seen in claims of others.
        self._seen = 0
        self._rival = False
        self.echoed = False
        self.key = NOBODY

    def connected(self) -> None:
        """Begin with a new connection to the broker: no other claims are known."""
        self._connections = (self._connections + 1) % 2 ** (8 * _COUNT)
        self.key = self._name + self._connections.to_bytes(_COUNT, "big")
        self._rival = self.echoed = False

    @property
    def claim(self) -> bytes:
        """The claim to publish, retained by the broker, while this server serves."""
        return pack(Kind.CLAIM, self.key, self._number)

    @property
    def will(self) -> bytes:
        """The will: published by the broker if this server is lost."""
        return pack(Kind.GONE, self.key)

    @property
    def probe(self) -> bytes:
        """The probe: it asks the serving server to publish its claim again."""
        return pack(Kind.PROBE, self.key)

    def has_rival(self) -> bool:
        """Return True if another server made a claim that beats this one, since connecting or since the last call."""
        rival, self._rival = self._rival, False
        return rival

    def heard(self, payload: Payload | None, *, serving: bool) -> bool:
        """Process a payload on the server's topic.

        Args:
            payload: The payload; None if it was malformed.
            serving: True if this server has claimed the prefix; before that every other claim is a rival's.

        Returns:
            True if this server, if it serves, must publish its claim again, so that the broker retains it.
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
        """Claim the next higher number, as the server that claimed the prefix does not answer."""
        self._number = min(self._seen + 1, 2**64 - 1)
