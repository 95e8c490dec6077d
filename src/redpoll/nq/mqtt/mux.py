"""All the links on one connection to a broker: what they send is gathered and published, what comes is handed out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from redpoll.address import Address
from redpoll.errors import PeerLost, ProtocolError
from redpoll.nq.mqtt.link import Judgement, MqttLink
from redpoll.nq.mqtt.payloads import HEADER, Kind, Payload, cut_out
from redpoll.nq.mqtt.sharing import Output, Publish, arrange
from redpoll.transport.carried import CarriedTransport

__all__ = ["CHUNK", "SMALLEST", "TOTAL", "WINDOW", "Mux", "Pipe"]

#: Bytes of a large body that one payload has at most. Small enough for allocators to use the same memory again, which
#: makes paho twice as fast as payloads of 128 KiB and more are.
CHUNK = 64 * 1024

#: What may be under way to this end on one link, and over all links, as `charge` counts; mosquitto drops what it cannot
#: deliver beyond 1,000 payloads.
WINDOW = 4 * 1024 * 1024
TOTAL = 8 * 1024 * 1024

#: The least that `transport_size` may be.
SMALLEST = 1024

#: Parts up to so many bytes go together.
_SMALL = 4 * 1024

#: Control payloads that wait for the broker, beyond which strangers get no answer.
_ANSWERS = 1000


class Pipe(Protocol):
    """What takes payloads to the broker."""

    @property
    def ready(self) -> bool:
        """Whether it takes one more: all before it are with the system."""

    def publish(self, topic: str, payload: bytes) -> None:
        """Give it one, which it keeps in memory if it is not ready; nothing happens where there is no connection."""


class Mux:
    """Gathers and hands out.

    Attributes:
        links: By key.
        strange: Payloads that were for nobody here, or made no sense.
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
            pipe: To the broker.
            loop: Where all of it runs.
            transport_size: Bytes that a payload has at most.
            everybody: The topic that all other ends read; None if this end is not the one that has several.
            emptied: Called when the last link ended.
        """
        self._pipe = pipe
        self._loop = loop
        self._limit = max(transport_size, SMALLEST)
        self._small = min(_SMALL, self._limit // 4)
        # Small parts may stand before a piece, and count as much.
        self._chunk = min(CHUNK, (self._limit - HEADER.size) // 2)
        self._everybody = everybody
        self._emptied = emptied
        self.links: dict[bytes, MqttLink] = {}
        self.strange = 0
        #: Those that have something to send, and may; those that owe the other end a word of what it may send.
        self._ready: dict[MqttLink, None] = {}
        self._owing: dict[MqttLink, None] = {}
        self._outbox: deque[Publish] = deque()
        #: Those whose end was published: they end when that is with the system.
        self._ending: list[MqttLink] = []
        self._scheduled = False

    # Links

    @property
    def window(self) -> int:
        """What may be under way to this end on each link."""
        return max(CHUNK, min(WINDOW, TOTAL // max(1, len(self.links))))

    def add(self, link: MqttLink) -> None:
        """One more link is being made."""
        self.links[link.key] = link

    def begin(self, link: MqttLink, protocol: asyncio.BufferedProtocol, remote: Address) -> None:
        """A link is there: its protocol is told."""
        extra: dict[str, object] = {"peername": (remote.host, remote.port)}
        link.transport = CarriedTransport(
            self._loop, protocol, lambda: self._wake(link), lambda: self._eased(link), extra
        )
        link.transport.begin()

    def end(self, link: MqttLink, error: Exception | None, *, tell: bool = False) -> None:
        """A link is over.

        Args:
            link: Which.
            error: Why; None is a good end.
            tell: Whether the other end is told, at once, whatever else waits.
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
        """All links are over, or those of one client."""
        for link in list(self.links.values()):
            if client is None or link.client == client:
                self.end(link, PeerLost(None, reason), tell=True)

    # Out

    def say(self, topic: str, payload: bytes) -> None:
        """Publish something short, in its turn; not for ever more of it while the broker takes nothing."""
        if len(self._outbox) < _ANSWERS:
            self._outbox.append(Publish(topic, [payload]))
            self._schedule()

    def flush(self) -> None:
        """Publish as far as the broker takes it: now, and whenever it takes more."""
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
            # What others have to send in this turn is written at the end of it, or in the next.
            self._loop.call_soon(self.flush if len(self.links) < 2 else self._later)

    def _later(self) -> None:
        self._loop.call_soon(self.flush)

    def _gather(self) -> bool:
        """Take the next piece of each link that may send one; False if there is none."""
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
        """Hand out what came for a link, from that client or to it."""
        link = self.links.get(payload.link)
        if link is None or link.client != client or link.transport is None:
            self.strange += 1
        elif payload.kind in (Kind.BYTES, Kind.CREDIT, Kind.CLOSE):
            self._came(link, payload.kind, payload.number, payload.allowed, [payload.data])
        else:
            self.strange += 1

    def came_shared(self, payload: Payload) -> None:
        """Hand out what the links here have of a payload for everybody."""
        for link in list(self.links.values()):
            found = cut_out(payload, link.key)
            if found is not None and link.transport is not None:
                number, allowed, *data = found
                self._came(link, Kind.BYTES, number, allowed, data)

    def _came(self, link: MqttLink, kind: Kind, number: int, allowed: int, data: list[memoryview]) -> None:
        flow, transport = link.flow, link.transport
        if transport is None:
            return
        judgement = flow.judge(number)
        if judgement is Judgement.DOUBLED:
            return
        if judgement is Judgement.MISSED:
            lost = PeerLost(None, f"{number - flow.received} payloads of it were lost at the MQTT broker")
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
                self.end(link, ProtocolError("more came over MQTT than was allowed"), tell=True)
                return
            for each in data:
                transport.feed(each)

    def _eased(self, link: MqttLink) -> None:
        """All that came was read."""
        link.flow.read()
        if self.links.get(link.key) is link and not link.leaving and link.flow.owes(self.window):
            self._owing[link] = None
            self._schedule()
