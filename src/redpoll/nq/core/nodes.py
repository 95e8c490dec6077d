"""The node that is under a communicator, and what the options make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import ConfigError, RedpollError
from redpoll.node.door import MESSAGE_UNIT, LayerNode, Peer
from redpoll.tls import TLS
from redpoll.tls.record import SYSTEM
from redpoll.transport.carrier import Carrier

if TYPE_CHECKING:
    from redpoll.node import Received
    from redpoll.nq.core.options import CommunicatorOptions
    from redpoll.serializers.base import Buffer

__all__ = ["StationNode", "Verbatim", "config_of"]

#: Messages, and bytes, that a peer may have on their way here; where what waits is not confirmed, besides that.
_WINDOW = 1024
_WINDOW_BYTES = 16 * 1024 * 1024

#: Messages that can be held until they are got.
_HELD = 65_535

#: It means loopback by definition (RFC 6761).
_LOCAL = "localhost"

_FRAGMENTS = 4096, 2**30
_U32 = 2**32 - 1
_U63 = 2**63 - 1
_YEAR = 31_536_000.0


class Verbatim:
    """Leaves bytes as they came: what gets them reads them."""

    name = "nq"
    wants_buffer = True

    def encode(self, obj: Any, /) -> Buffer:
        """Bytes are what they are."""
        return obj  # type: ignore[no-any-return]  # only bytes are given

    def decode(self, data: Buffer, /) -> Buffer:
        """And stay so."""
        return data


class _Station(Protocol):
    """What a node tells its station."""

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Messages of one peer came; return those that are done."""

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """A link to a peer is there."""

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """The session with a peer is over."""


class StationNode(LayerNode):
    """A node whose messages are a station's, which ends each of them."""

    def __init__(self, station: _Station, carrier: Carrier, config: Config) -> None:
        super().__init__(config, carrier)
        self._station = station

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Messages came."""
        return self._station.arrived(messages)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self._station.run_began(peer, renewed)

    def _session_resumed(self, peer: Peer) -> None:
        self._station.run_began(peer, False)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._station.run_ended(peer, error)


def config_of(options: CommunicatorOptions, *, server: bool, encrypts: bool) -> Config:
    """The options of the node under a communicator.

    Args:
        options: The communicator's.
        server: Whether it listens.
        encrypts: Whether links are encrypted by the node: they are not where what carries them does so.

    Raises:
        ConfigError: A link would be plain where others can read it; a client has no port to dial.
    """
    connection = options.connection
    held = connection.effective_confirm == "get"
    host, port = options.netloc
    address = Address.of_host(host, port)
    if not server and address.kind == "tcp" and not port:
        raise ConfigError("netloc", str(options.netloc), "a client dials a port", "it is the one that its server has")
    if options.security is None and not options.allow_plain and not (address.is_loopback or host.lower() == _LOCAL):
        raise ConfigError(
            "security",
            None,
            f"links with {address} would be plain, for everybody on the way to read and change",
            "give security=SecurityOptions(…), or say with allow_plain=True that this is meant",
        )
    where: dict[str, Any] = {"host": host, "port": port} if server else {"listen": False}
    return Config(
        **where,
        identity=options.id.bytes,
        secret=options.secret,
        resume=connection.resume,
        keepalive=connection.keepalive,
        slots=_HELD,
        node_slots=_U32,
        window=min(connection.queue_size + _WINDOW, _HELD) if held else _WINDOW,
        window_bytes=min((connection.queue_bytes or 0) + _WINDOW_BYTES, _U63) if held else _WINDOW_BYTES,
        auto_release=not held,
        timeout=None,
        connect_timeout=10.0,
        reuse_time=_YEAR,
        # What the other end is told is rounded down, and a message may have a header of one byte.
        max_message_size=min(connection.message_size + MESSAGE_UNIT, _U63),
        fragment_size=min(max(connection.transport_size, _FRAGMENTS[0]), _FRAGMENTS[1]),
        in_order=True,
        max_connections_per_host=10_000,
        memory_limit=None,
        send_queue_limit=_U32,
        send_queue_bytes=_U63,
        serializer=Verbatim(),
        encryption=options.security is not None and encrypts,
        tls=_tls(options, server=server) if encrypts else None,
    )


def _tls(options: CommunicatorOptions, *, server: bool) -> TLS | None:
    """A server shows its certificate and asks for none; a client trusts that file, or the system."""
    security = options.security
    if security is None:
        return None
    if not server:
        return TLS(ca=security.certificate or SYSTEM, check_names=True)
    if security.certificate is None or security.key is None:
        missing = "certificate" if security.certificate is None else "key"
        raise ConfigError(missing, None, "a server that encrypts needs its certificate and its key")
    # It dials nobody, so it does not matter whom it trusts; without a word its own file would have to hold a CA.
    return TLS(ca=SYSTEM, certificate=security.certificate, key=security.key, client_certificate="none")
