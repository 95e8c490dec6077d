"""What carries links over MQTT: a broker between a server and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.mqtt.broker import Login
from redpoll.nq.mqtt.dialling import Call
from redpoll.nq.mqtt.library import make_client
from redpoll.nq.mqtt.listener import MqttListener
from redpoll.nq.mqtt.topics import Topics
from redpoll.transport.dial import ProtocolFactory
from redpoll.transport.listen import Acceptor

if TYPE_CHECKING:
    from redpoll.nq.core.options import CommunicatorOptions

__all__ = ["ENCRYPTS", "MqttCarrier", "make"]

#: Whether links are encrypted below the node, so that it does not.
ENCRYPTS = True

#: Seconds that a thread has which connects in vain.
_ENDING = 1.0


def _nothing(_: ConfigError) -> None:
    pass


class MqttCarrier:
    """Carries the links of one node by way of an MQTT broker, whose address takes the place of the server's.

    A server has one connection to the broker for all its links, a client one for its link. All of it goes with QoS 0: the
    node at each end acknowledges, so a message that a broker lost fails, or goes again, as over any link that broke, and a
    gap in the numbers of a link's payloads ends it at once. What a link may have under way is bounded at its ends, at
    4 MiB and less where a server has many, so that a broker holds little for who is slow. The exception is what goes to
    several clients at once: for a client that reads nothing at all the broker holds what others get, as much as it may,
    and drops the rest.

    Topics, all below the prefix: clients publish to PREFIX/up/NAME and read PREFIX/down/NAME, PREFIX/all and PREFIX/server,
    where NAME is random, and their MQTT client id; the server reads PREFIX/up/+ and publishes to the
    others. What goes to several clients at once and is the same is published once, to PREFIX/all.

    Whoever may publish can send nothing into a link whose random names it does not know; whoever may read the topics reads
    what is in them, and learns the names: that is for the broker's access lists to prevent. Let clients write PREFIX/up/%c
    and read PREFIX/down/%c, where %c is their client id, PREFIX/all and PREFIX/server, let the server alone write the
    latter two and PREFIX/down/#, and read PREFIX/up/# and PREFIX/server, and encrypt the way to the broker. What goes to
    PREFIX/all can be read by all clients, which is why only what several of them get is published there.

    One server serves a prefix: a second one fails to start. Where the two could not know of each other at first, or one was
    taken for gone, one of them gives up once the other has answered it: that is logged, and told by `given_up`. A claim that
    nobody stands by when asked is in nobody's way.
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
        """Connect to nothing yet.

        Args:
            prefix: What the topics begin with; several servers at one broker have different ones.
            transport_size: Bytes that a payload has at most, from 1,024. One link has at most 128 KiB in one in any
                case, and 64 KiB of a large body, which is what goes through brokers and paho fastest.
            encrypted: Whether the broker is spoken to by TLS; its certificate and name are checked.
            certificate: The file of the CA that signed the broker's certificate; None is those that the system trusts.
            username: At the broker; None is anonymous.
            password: Of that user.
            connect_timeout: Seconds that connecting to the broker may take.
            given_up: Called with the reason when a server that listened is not reached any more.

        Raises:
            ConfigError: Topics cannot begin with the prefix, or the certificate cannot be used: it is read now as well.
            UsageError: paho-mqtt is not installed.
        """
        make_client()  # to know now whether it can be
        self._topics = Topics(prefix)
        self._login = Login(encrypted, certificate, username, password, connect_timeout)
        self._login.context()
        self._transport_size = transport_size
        self._given_up = given_up

    def listener(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> MqttListener:  # noqa: ARG002  # Carrier's
        """Make what lets clients in."""
        return MqttListener(acceptor, loop, self._topics, self._login, self._transport_size, self._given_up)

    async def resolve(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Address]:  # noqa: ARG002  # Carrier's
        """The broker's name is looked up when it is connected to, since its certificate is checked against that."""
        return [address]

    async def dial(self, address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
        """Make a link to the server at a broker.

        Raises:
            DialFailed: The broker, or a server at its prefix, is not there or does not let this end in.
            TLSError: The broker's certificate is not to be trusted.
            ConfigError: The file of the CA cannot be used.
            UsageError: paho-mqtt is not installed.
        """
        await Call(address, loop, self._topics, self._login, self._transport_size).connect(factory)

    async def wait_ended(self) -> None:
        """Wait for threads that connect though nobody wants that any more; all else is gone when it ends."""
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
    """Make what carries the links of a communicator.

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
