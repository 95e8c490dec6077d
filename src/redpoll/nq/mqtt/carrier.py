"""The carrier of links over MQTT: a broker between a server and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.mqtt.broker import Login, make_client
from redpoll.nq.mqtt.dialling import Call
from redpoll.nq.mqtt.listener import MqttListener
from redpoll.nq.mqtt.topics import Topics
from redpoll.transport.dial import ProtocolFactory
from redpoll.transport.listen import Acceptor

if TYPE_CHECKING:
    from redpoll.nq.core.options import CommunicatorOptions

__all__ = ["MqttCarrier", "make"]

#: Seconds to wait for a thread whose attempt to connect was abandoned.
_ENDING = 1.0


def _nothing(_: ConfigError) -> None:
    pass


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
        *,
        prefix: str = "redpoll",
        transport_size: int = 16 * 1024 * 1024,
        encrypted: bool = False,
        certificate: Path | None = None,
        username: str | None = None,
        password: str | None = None,
        connect_timeout: float = 5.0,
        given_up: Callable[[ConfigError], object] = _nothing,
    ) -> None:
        """Make a carrier without a connection.

        Args:
            prefix: First part of the topics; several servers at one broker need different ones.
            transport_size: Maximum size of a payload, in bytes, from 1,024. One link has at most 128 KiB in one in any
                case, and 64 KiB of a large body, which passes brokers and paho fastest.
            encrypted: Use TLS to the broker; its certificate and name are checked.
            certificate: The file of the CA that signed the broker's certificate; None: the CAs that the system trusts.
            username: User at the broker; None: anonymous.
            password: The user's password.
            connect_timeout: Seconds that connecting to the broker may take.
            given_up: Called with the reason when a server that listened stops serving.

        Raises:
            ConfigError: Topics cannot begin with the prefix, or the certificate, which is read now, cannot be used.
            UsageError: paho-mqtt is not installed.
        """
        make_client()  # raises now if it cannot be made later
        self._topics = Topics(prefix)
        self._login = Login(encrypted, certificate, username, password, connect_timeout)
        self._login.context()
        self._transport_size = transport_size
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
        """Wait for threads of abandoned attempts to connect; nothing else is left when the carrier ends."""
        loop = asyncio.get_running_loop()
        threads = [each for each in self._login.threads if each.get_loop() is loop]
        if threads:
            await asyncio.wait(threads, timeout=_ENDING)


def make(
    options: CommunicatorOptions,
    *,
    server: bool,  # noqa: ARG001  # each protocol's
    given_up: Callable[[ConfigError], object],
) -> MqttCarrier:
    """Return the carrier for the links of a communicator.

    Raises:
        ConfigError: Topics cannot begin with the prefix, or the certificate cannot be used.
        UsageError: paho-mqtt is not installed.
    """
    security = options.security
    return MqttCarrier(
        prefix=options.prefix,
        transport_size=options.connection.transport_size,
        encrypted=security is not None,
        certificate=None if security is None else security.certificate,
        username=options.username,
        password=options.password,
        given_up=given_up,
    )
