"""A server at a broker: it claims its prefix, accepts clients, and reconnects to the broker."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, LinkError, TLSError
from redpoll.nq.mqtt import broker as broker_module
from redpoll.nq.mqtt.broker import Broker, Login
from redpoll.nq.mqtt.leadership import LeadershipClaim
from redpoll.nq.mqtt.link import MqttLink
from redpoll.nq.mqtt.mux import Mux
from redpoll.nq.mqtt.payloads import Kind, Payload, pack, read
from redpoll.nq.mqtt.topics import Topics
from redpoll.transport.backoff import backoff
from redpoll.transport.listen import Acceptor

__all__ = ["AGAIN", "PROBING", "MqttListener"]

_logger = logging.getLogger("redpoll.nq.mqtt")

#: Seconds that another server has to confirm its claim, if the broker retains one.
PROBING = 1.0

#: Seconds after which a message on the server's topic that is no claim is answered by a claim.
AGAIN = 0.1


class MqttListener:
    """Listener for clients that connect by way of a broker; it reconnects to the broker until it is closed."""

    def __init__(
        self,
        acceptor: Acceptor,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        login: Login,
        transport_size: int,
        given_up: Callable[[ConfigError], object] | None,
    ) -> None:
        self._acceptor = acceptor
        self._given_up = given_up
        self._loop = loop
        self._topics = topics
        self._login = login
        self._leadership = LeadershipClaim()
        self._mux = Mux(self, loop, transport_size, topics.everybody, self._emptied)
        self._broker: Broker | None = None
        self._serving = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._dispute: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self.addresses: list[Address] = []

    @property
    def port(self) -> int:
        """Port of the broker, which clients dial."""
        return self.addresses[0].port if self.addresses else 0

    @property
    def descriptors(self) -> list[int]:
        """File descriptors: none of its own."""
        return []

    # Pipe, for the links

    @property
    def ready(self) -> bool:
        """True if the broker takes a payload at once."""
        return self._broker is not None and self._broker.ready

    def publish(self, topic: str, payload: bytes) -> None:
        """Hand a payload to the broker."""
        if self._broker is not None:
            self._broker.publish(topic, payload)

    # Listening

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Connect to the broker, and check that no other server serves the prefix.

        Args:
            hosts: The broker's host: one.
            port: Its port.
            check: Called with its address; raises an error to refuse it.

        Raises:
            ConfigError: There is no broker, it refuses this user, or another server serves the prefix.
            TLSError: The broker's certificate is not trusted, or only one end encrypts.
        """
        if len(hosts) != 1 or not port:
            raise ConfigError("host", hosts, "a server at an MQTT broker has one address: the broker's")
        address = Address.of_host(hosts[0], port)
        check(address)
        try:
            await self._connect(address)
        except TLSError:
            raise
        except LinkError as error:
            hint = "start the broker, or name another one with host and port"
            problem = f"a server cannot use the MQTT broker: {error}"
            system = error.__cause__
            # The system's error is the cause, if there was one.
            cause = system if isinstance(system, OSError) and system.errno else error
            raise ConfigError("host", str(address), problem, hint) from cause
        self.addresses.append(address)

    def accept(self) -> None:
        """Claim the prefix, and accept clients."""
        self._serving = True
        if self._broker is None:
            self._return("the MQTT broker ended before anybody was let in")
        else:
            self._claim()

    def close(self) -> None:
        """Stop accepting clients; open links stay, and with them the connection to the broker."""
        self._closed = True
        self._stop_claiming()
        for task in (self._task, self._dispute):
            if task is not None:
                task.cancel()
        if self._broker is not None:
            if self._serving:
                # Clear the retained claim, so that new clients find no server.
                self._broker.publish(self._topics.server, b"", retain=True)
            if not self._mux.links:
                self._broker.close()
        self._serving = False

    async def wait_closed(self) -> None:
        """Wait, after `close()`, until it has stopped reconnecting."""
        tasks = [each for each in (self._task, self._dispute) if each is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _emptied(self) -> None:
        if self._closed and self._broker is not None:
            self._broker.close()

    # The broker

    async def _connect(self, address: Address) -> None:
        """Connect, subscribe, and check whether another server claims the prefix.

        Raises:
            LinkError: The broker cannot be reached, or refuses this user.
            ConfigError: Another server serves the prefix.
        """
        topics, leadership = self._topics, self._leadership
        leadership.connected()
        name = f"redpoll-server-{leadership.key.hex()}"
        broker = Broker(address, self._login, self._loop, name, self._came, self._mux.flush, self._lost)
        self._broker = broker
        self._heard.clear()
        try:
            async with asyncio.timeout(broker_module.CONNECT_TIMEOUT):
                await broker.connect(will=(topics.server, leadership.will, True))
                await broker.subscribe(topics.server, topics.from_all)
                # Retained messages have arrived by the time that the probe returns.
                await self._echo(broker)
            taken = leadership.has_rival() and await self._answers(broker)
        except TimeoutError as error:
            broker.close()
            problem = f"the MQTT broker does not answer, or refuses publishing to {topics.server}"
            raise DialFailed(address, problem) from error
        except BaseException:
            broker.close()
            raise
        if taken:
            broker.close()
            raise self._taken()

    async def _echo(self, broker: Broker) -> None:
        """Publish a probe on the server's topic, and wait until it returns."""
        self._leadership.echoed = False
        broker.publish(self._topics.server, self._leadership.probe)
        while not self._leadership.echoed:
            await self._hear()

    async def _answers(self, broker: Broker) -> bool:
        """Return True if the server that claimed the prefix confirms it; otherwise take the prefix over."""
        broker.publish(self._topics.server, self._leadership.probe)
        try:
            async with asyncio.timeout(PROBING):
                while not self._leadership.has_rival():
                    await self._hear()
        except TimeoutError:
            # The connection may have been lost at the same moment.
            self._check_connected()
            self._leadership.take_over()
            return False
        return True

    def _taken(self) -> ConfigError:
        prefix = self._topics.server.removesuffix("/server")
        return ConfigError("prefix", prefix, "another server serves it at this MQTT broker", "give each its own")

    async def _hear(self) -> None:
        """Wait for a message on the server's topic, or the end of the connection."""
        await self._heard.wait()
        self._heard.clear()
        self._check_connected()

    def _check_connected(self) -> None:
        if self._broker is None:
            raise DialFailed(None, "the connection to the MQTT broker ended")

    def _claim(self) -> None:
        self._stop_claiming()
        if self._broker is not None:
            self._broker.publish(self._topics.server, self._leadership.claim, retain=True)

    def _stop_claiming(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _lost(self, reason: str) -> None:
        """Close all links, as the connection to the broker is lost, and reconnect."""
        self._broker = None
        self._heard.set()
        self._mux.end_all(reason)
        if self._serving and not self._comes_back:
            self._return(reason)

    def _return(self, reason: str) -> None:
        _logger.warning("%s; trying again until it is back", reason)
        self._task = self._loop.create_task(self._come_back(), name="redpoll mqtt")

    async def _come_back(self) -> None:
        waits = backoff(random.random)
        address = self.addresses[0]
        warned = False
        while True:
            await asyncio.sleep(next(waits))
            try:
                await self._connect(address)
            except ConfigError as error:
                self._give_up(error)
                return
            except LinkError as error:
                # The broker may be back, and only the administrator of this end can help.
                own = isinstance(error.__cause__, ConfigError) and not warned
                warned = warned or own
                _logger.log(logging.WARNING if own else logging.DEBUG, "the MQTT broker is not back: %s", error)
            else:
                self._claim()
                _logger.info("serving at the MQTT broker %s again", address)
                return

    async def _settle(self, broker: Broker) -> None:
        """Resolve another server's claim: stop serving if it is confirmed, else claim the prefix again."""
        try:
            async with asyncio.timeout(broker_module.CONNECT_TIMEOUT):
                # Messages published before the probe returns do not count.
                await self._echo(broker)
            self._leadership.has_rival()
            taken = await self._answers(broker)
        except (TimeoutError, DialFailed):  # the broker does not answer; if it is lost, this one reconnects
            return
        if taken:
            self._give_up(self._taken())
        else:
            self._claim()

    def _give_up(self, error: ConfigError) -> None:
        """Stop serving, as another server serves the prefix."""
        self._serving = False
        self._stop_claiming()
        _logger.error("this server stopped serving: %s", error)
        broker, self._broker = self._broker, None
        self._mux.end_all("another server serves the prefix")
        if broker is not None:
            broker.close()
        if self._given_up is not None:
            self._given_up(error)

    # Received messages

    def _came(self, topic: str, data: bytes) -> None:
        payload = read(data)
        if topic == self._topics.server:
            self._came_to_server(payload)
            return
        client = self._topics.sender(topic)
        if client is None or payload is None:
            return
        if payload.kind is Kind.OPEN:
            self._open(client, payload)
        elif payload.kind is Kind.GONE:
            self._mux.end_all("its connection to the MQTT broker ended", client)
        else:
            self._mux.came(client, payload)

    def _came_to_server(self, payload: Payload | None) -> None:
        serving = self._serving and not self._comes_back
        again = self._leadership.heard(payload, serving=serving)
        self._heard.set()
        if not serving:
            return
        disputed = self._dispute is not None and not self._dispute.done()
        if not disputed and self._broker is not None and self._leadership.has_rival():
            self._dispute = self._loop.create_task(self._settle(self._broker), name="redpoll mqtt claim")
        elif again and self._again is None:
            # With a delay: a client must not be able to make this end publish without limit.
            self._again = self._loop.call_later(AGAIN, self._claim)

    @property
    def _comes_back(self) -> bool:
        return self._task is not None and not self._task.done()

    def _open(self, client: str, payload: Payload) -> None:
        mux = self._mux
        if payload.link in mux.links:
            return
        topic = self._topics.down(client)
        remote = Address("tcp", f"mqtt-{client}")
        if not self._serving or not self._acceptor.admits(remote):
            mux.say(topic, pack(Kind.CLOSE, payload.link))
            return
        link = MqttLink(payload.link, client, topic)
        link.flow.allow(payload.allowed)
        mux.add(link)
        mux.say(topic, link.say(Kind.ACCEPT, link.flow.tell(mux.window)))
        mux.begin(link, self._acceptor.accepted(remote), remote)
