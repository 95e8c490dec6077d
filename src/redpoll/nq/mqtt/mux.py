"""All the links on one connection to a broker: sent data is gathered and published, received data is dispatched."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from redpoll.address import Address
from redpoll.errors import PeerLost, ProtocolError
from redpoll.nq.mqtt.link import MqttLink
from redpoll.nq.mqtt.payloads import HEADER, Kind, Payload, cut_out
from redpoll.nq.mqtt.sharing import Output, Publish, arrange
from redpoll.transport.carried import CarriedTransport

__all__ = ["CHUNK", "SMALLEST", "TOTAL", "WINDOW", "Mux", "Pipe"]

#: Maximum bytes of a large body in one payload. Small enough for allocators to reuse memory, which makes paho twice as
#: fast as payloads of 128 KiB and more do.
CHUNK = 64 * 1024

#: Maximum charge of payloads in flight to this end, on one link and over all links; mosquitto drops payloads beyond
#: 1,000 that it cannot deliver.
WINDOW = 4 * 1024 * 1024
TOTAL = 8 * 1024 * 1024

#: Minimum of `transport_size`.
SMALLEST = 1024

#: Parts up to this size, in bytes, are joined.
_SMALL = 4 * 1024

#: Maximum control payloads that wait for the broker; further ones are dropped.
_ANSWERS = 1000


class Pipe(Protocol):
    """The connection that takes payloads to the broker."""

    @property
    def ready(self) -> bool:
        """True if it takes a payload at once: all earlier ones are with the system."""

    def publish(self, topic: str, payload: bytes) -> None:
        """Hand over a payload, which waits in memory if the connection is not ready; without a connection it is dropped."""


class Mux:
    """Gathers the data of links into payloads, and dispatches received payloads to links.

    Attributes:
        links: The links by key.
    """

    def __init__(
        self,
        pipe: Pipe,
        loop: asyncio.AbstractEventLoop,
        transport_size: int,
        everybody: str | None,
        emptied: Callable[[], object],
    ) -> None:
        """Begin without links.

        Args:
            pipe: The connection to the broker.
            loop: The event loop that runs all of this.
            transport_size: Maximum size of a payload, in bytes.
            everybody: The topic that all other ends read; None at a client.
            emptied: Called when the last link has ended.
        """
        self._pipe = pipe
        self._loop = loop
        self._limit = max(transport_size, SMALLEST)
        self._small = min(_SMALL, self._limit // 4)
        # A large piece may follow small parts, and counts as much.
        self._chunk = min(CHUNK, (self._limit - HEADER.size) // 2)
        self._everybody = everybody
        self._emptied = emptied
        self.links: dict[bytes, MqttLink] = {}
        #: Links with data to send and credit for it; links that must send credit to the other end.
        self._ready: dict[MqttLink, None] = {}
        self._owing: dict[MqttLink, None] = {}
        self._outbox: deque[Publish] = deque()
        #: Links whose CLOSE was published: they end when it is with the system.
        self._ending: list[MqttLink] = []
        self._scheduled = False

    # Links

    @property
    def window(self) -> int:
        """Maximum charge of payloads in flight to this end on each link."""
        return max(CHUNK, min(WINDOW, TOTAL // max(1, len(self.links))))

    def add(self, link: MqttLink) -> None:
        """Add a link that is being opened."""
        self.links[link.key] = link

    def begin(self, link: MqttLink, protocol: asyncio.BufferedProtocol, remote: Address) -> None:
        """Open a link: its protocol receives its transport."""
        extra: dict[str, object] = {"peername": (remote.host, remote.port)}
        link.transport = CarriedTransport(
            self._loop, protocol, lambda: self._wake(link), lambda: self._eased(link), extra
        )
        link.transport.begin()

    def end(self, link: MqttLink, error: Exception | None, *, tell: bool = False) -> None:
        """End a link.

        Args:
            link: The link.
            error: The reason; None if it was closed in order.
            tell: Send CLOSE to the other end at once, ahead of waiting data.
        """
        if self.links.get(link.key) is not link:
            return
        if tell and not link.leaving:
            self._pipe.publish(link.topic, link.say(Kind.CLOSE))
        del self.links[link.key]
        self._ready.pop(link, None)
        self._owing.pop(link, None)
        if link.transport is not None:
            link.transport.end(error)
        if not self.links:
            self._emptied()

    def end_all(self, reason: str, client: str | None = None) -> None:
        """End all links, or those of one client."""
        for link in list(self.links.values()):
            if client is None or link.client == client:
                self.end(link, PeerLost(None, reason), tell=True)

    # Out

    def say(self, topic: str, payload: bytes) -> None:
        """Queue a short payload; it is dropped if too many wait for the broker."""
        if len(self._outbox) < _ANSWERS:
            self._outbox.append(Publish(topic, [payload]))
            self._schedule()

    def flush(self) -> None:
        """Publish as far as the broker takes payloads; called again when it takes more."""
        self._scheduled = False
        pipe = self._pipe
        while pipe.ready:
            if not self._outbox:
                while self._ending:
                    self.end(self._ending.pop(), None)
                if not self._gather():
                    return
            publish = self._outbox.popleft()
            pipe.publish(publish.topic, b"".join(publish.parts))

    def _wake(self, link: MqttLink) -> None:
        transport = link.transport
        if transport is not None and transport.aborted:
            self.end(link, None, tell=True)
            return
        if self.links.get(link.key) is link and not link.leaving:
            self._ready[link] = None
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # Gather data that other links send in this turn of the loop, or in the next.
            self._loop.call_soon(self.flush if len(self.links) < 2 else self._later)

    def _later(self) -> None:
        self._loop.call_soon(self.flush)

    def _gather(self) -> bool:
        """Take the next piece of each link that may send one; return False if there is none."""
        window = self.window
        outputs: list[Output] = []
        for link in list(self._ready):
            transport, flow = link.transport, link.flow
            if transport is None or not transport.get_write_buffer_size():
                del self._ready[link]
                if transport is not None and transport.is_closing():
                    link.leaving = True
                    self._outbox.append(Publish(link.topic, [link.say(Kind.CLOSE)]))
                    self._ending.append(link)
            elif not flow.open:
                del self._ready[link]
            else:
                parts = transport.take_piece(self._small, self._chunk)
                self._owing.pop(link, None)
                number = flow.number(sum(map(len, parts)))
                outputs.append(Output(link.key, link.topic, number, flow.tell(window), parts))
        for link in self._owing:
            self._outbox.append(Publish(link.topic, [link.say(Kind.CREDIT, link.flow.tell(window))]))
        self._owing.clear()
        if outputs:
            self._outbox += arrange(outputs, self._everybody, self._limit)
        return bool(self._outbox)

    # In

    def came(self, client: str, payload: Payload) -> None:
        """Dispatch a payload of one link, from that client or to it."""
        link = self.links.get(payload.link)
        if link is None or link.client != client:
            return
        if payload.kind in (Kind.BYTES, Kind.CREDIT, Kind.CLOSE):
            self._came(link, payload.kind, payload.number, payload.allowed, [payload.data])

    def came_shared(self, payload: Payload) -> None:
        """Dispatch a payload shared by several links to those of them that are here."""
        for link in list(self.links.values()):
            found = cut_out(payload, link.key)
            if found is not None and link.transport is not None:
                number, allowed, *data = found
                self._came(link, Kind.BYTES, number, allowed, data)

    def _came(self, link: MqttLink, kind: Kind, number: int, allowed: int, data: list[memoryview]) -> None:
        flow, transport = link.flow, link.transport
        if transport is None:
            return
        missing = flow.missing(number)
        if missing < 0:
            return
        if missing:
            lost = PeerLost(None, f"{missing} payloads of it were lost at the MQTT broker")
            self.end(link, lost, tell=True)
            return
        if kind is Kind.CLOSE:
            self.end(link, None)
            return
        was_open = flow.open
        flow.allow(allowed)
        if flow.open and not was_open and transport.get_write_buffer_size():
            self._wake(link)
        if kind is Kind.BYTES:
            if not flow.came(sum(map(len, data))):
                self.end(link, ProtocolError("the peer exceeded its credit over MQTT"), tell=True)
                return
            for each in data:
                transport.feed(each)

    def _eased(self, link: MqttLink) -> None:
        """Count all received data as read, and return credit if enough is free."""
        link.flow.read()
        if self.links.get(link.key) is link and not link.leaving and link.flow.owes(self.window):
            self._owing[link] = None
            self._schedule()
