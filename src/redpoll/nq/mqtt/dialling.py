"""A client's link to its server, with a connection to the broker of its own."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from redpoll.address import Address
from redpoll.errors import DialFailed
from redpoll.nq.mqtt.broker import Broker, Login
from redpoll.nq.mqtt.link import MqttLink
from redpoll.nq.mqtt.mux import Mux
from redpoll.nq.mqtt.payloads import KEY, Kind, pack, read
from redpoll.nq.mqtt.topics import Topics
from redpoll.transport.dial import ProtocolFactory

__all__ = ["GRACE", "Call"]

#: Seconds in which the broker must deliver a server's retained claim after the subscription.
GRACE = 0.25


class Call:
    """One link to the server, and a connection to the broker that lives as long as the link."""

    def __init__(
        self, address: Address, loop: asyncio.AbstractEventLoop, topics: Topics, login: Login, transport_size: int
    ) -> None:
        """Make a closed link; `connect` opens it.

        Raises:
            UsageError: paho-mqtt is not installed.
            DialFailed: The file of the CA cannot be read now.
        """
        self._address = address
        self._topics = topics
        self._client = secrets.token_hex(8)
        self._link = MqttLink(secrets.token_bytes(KEY), self._client, topics.up(self._client))
        self._broker = Broker(address, login, loop, self._client, self._came, self._flush, self._lost)
        self._mux = Mux(self._broker, loop, transport_size, None, self._broker.close)
        #: Key of the server that claims the prefix; None if there is none, as far as the broker knows.
        self._server: bytes | None = None
        self._told = asyncio.Event()
        self._factory: ProtocolFactory | None = None
        self._accepted: asyncio.Future[None] = loop.create_future()

    async def connect(self, factory: ProtocolFactory) -> None:
        """Open the link; `factory` makes its protocol, whose `connection_made` was called when this returns.

        Raises:
            DialFailed: The broker, or a server at its prefix, cannot be reached or refuses this end.
            TLSError: The broker's certificate is not trusted.

        Cancelling abandons the attempt and closes its connection.
        """
        broker, link, mux = self._broker, self._link, self._mux
        try:
            await broker.connect(will=(link.topic, pack(Kind.GONE, link.key), False))
            await broker.subscribe(self._topics.server, self._topics.down(self._client), self._topics.everybody)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._told.wait()
            if self._server is None:
                prefix = self._topics.server.removesuffix("/server")
                self._fail(f"no server serves {prefix!r} at this MQTT broker")
            else:
                mux.add(link)
                self._factory = factory
                broker.publish(link.topic, link.say(Kind.OPEN, link.flow.tell(mux.window)))
            await self._accepted
        except BaseException:
            mux.end_all("the attempt was cancelled")
            broker.close()
            raise
        finally:
            self._accepted.cancel()

    def _flush(self) -> None:
        self._mux.flush()

    def _fail(self, reason: str) -> None:
        """End the link, or fail the `connect` that waits for it."""
        if not self._accepted.done():
            self._accepted.set_exception(DialFailed(self._address, reason))
            self._accepted.exception()  # marked as retrieved, also if `connect` does not wait yet
        self._mux.end_all(reason)

    def _lost(self, reason: str) -> None:
        self._told.set()
        self._fail(reason)

    def _came(self, topic: str, data: bytes) -> None:
        payload = read(data)
        if topic == self._topics.server:
            if payload is not None and payload.kind is Kind.CLAIM:
                self._server = payload.link
                self._told.set()
            elif payload is not None and payload.kind is Kind.GONE and payload.link == self._server:
                self._server = None
                self._fail("the server's connection to the MQTT broker ended")
            return
        if payload is None:
            return
        mine = payload.link == self._link.key
        if topic == self._topics.everybody and payload.kind is Kind.SHARED:
            self._mux.came_shared(payload)
        elif mine and payload.kind is Kind.ACCEPT and self._factory is not None and not self._accepted.done():
            # Begin at once: the link's first bytes may follow in the same read.
            self._link.flow.allow(payload.allowed)
            self._mux.begin(self._link, self._factory(), self._address)
            self._accepted.set_result(None)
        elif mine and payload.kind is Kind.CLOSE and not self._accepted.done():
            self._accepted.set_exception(DialFailed(self._address, "the server accepts no more links"))
        else:
            self._mux.came(self._client, payload)
