"""The carrier of links over MQTT: a broker between a server and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.mqtt.broker import ENDING, Login, make_client
from redpoll.nq.mqtt.dialling import Call
from redpoll.nq.mqtt.listener import MqttListener
from redpoll.nq.mqtt.topics import Topics
from redpoll.transport.dial import ProtocolFactory
from redpoll.transport.listen import Acceptor

if TYPE_CHECKING:
    from redpoll.nq.core.options import CommunicatorOptions

__all__ = ["MqttCarrier"]


class MqttCarrier:
    """Carrier of the links of one node over an MQTT broker, whose address takes the place of the server's.

    A server has one connection to the broker for all its links, a client has one for its link. Payloads are sent with
    QoS 0: the nodes acknowledge, so that a message that the broker lost fails or is resent, as over any broken link, and
    a gap in the numbers of a link's payloads closes it at once. The ends bound the data in flight over a link, to 4 MiB,
    or less if the server has many links, so that the broker holds little for a slow end. The exception is data sent to
    several clients at once: for a client that reads nothing the broker holds as much of it as it is configured to, and
    drops the rest.

    The topics are below the prefix. Clients publish to PREFIX/up/NAME and read PREFIX/down/NAME, PREFIX/all and
    PREFIX/server, where NAME is random, and their MQTT client id. The server reads PREFIX/up/+ and publishes to the others.
    Equal data for several clients is published once, to PREFIX/all.

    A client that may publish cannot send into a link whose random names it does not know. One that may read the topics
    reads the data and learns the names; the broker's access lists must prevent that. Let clients write PREFIX/up/%c
    and read PREFIX/down/%c, where %c is their client id, PREFIX/all and PREFIX/server, let the server alone write the
    latter two and PREFIX/down/#, and read PREFIX/up/# and PREFIX/server, and encrypt the connections to the broker. All
    clients can read PREFIX/all, so only data for several of them is published there.

    One server serves a prefix; a second one fails to start. If two did not notice each other at first, or one was
    considered lost, one of them stops serving once the other has answered it: this is logged, and reported by `given_up`.
    A claim that no server confirms when asked is replaced.
    """

    def __init__(
        self,
        options: CommunicatorOptions,
        *,
        server: bool = False,  # noqa: ARG002  # both ends are the same to a broker
        given_up: Callable[[ConfigError], object] | None = None,
    ) -> None:
        """Make a carrier without a connection.

        Args:
            options: The options of the communicator. One link has at most 128 KiB in one payload in any case, and
                64 KiB of a large body, which passes brokers and paho fastest.
            server: Whether it is for a server.
            given_up: Called with the reason when a server that listened stops serving.

        Raises:
            ConfigError: Topics cannot begin with the prefix, or the certificate, which is read now, cannot be used.
            UsageError: paho-mqtt is not installed.
        """
        make_client()  # raises now if it cannot be made later
        self._topics = Topics(options.prefix)
        self._login = Login(options.security, options.username, options.password)
        self._login.context()
        self._transport_size = options.connection.transport_size
        self._given_up = given_up

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> MqttListener:  # noqa: ARG002  # Carrier's
        """Return the listener of a server."""
        return MqttListener(acceptor, loop, self._topics, self._login, self._transport_size, self._given_up)

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:  # noqa: ARG002  # Carrier's
        """Return the address as it is: its name is looked up on connecting, as the certificate is checked against it."""
        return [address]

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Open a link to the server at a broker.

        Raises:
            DialFailed: The broker, or a server at its prefix, cannot be reached or refuses this end; or the file of the CA
                cannot be read now.
            TLSError: The broker's certificate is not trusted.
            UsageError: paho-mqtt is not installed.
        """
        await Call(address, loop, self._topics, self._login, self._transport_size).connect(factory)

    async def wait_ended(self) -> None:
        """Wait for abandoned attempts to connect, and for the broker to read the rest of closed connections."""
        loop = asyncio.get_running_loop()
        ending = [each for each in self._login.ending if each.get_loop() is loop]
        if ending:
            await asyncio.wait(ending, timeout=ENDING)
