"""The node below a communicator, and its Config."""

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

#: Window of a peer in messages and bytes; messages that wait for `get` to confirm them are added.
_WINDOW = 1024
_WINDOW_BYTES = 16 * 1024 * 1024

#: Maximum messages that wait for `get` to confirm them.
_HELD = 65_535

#: Loopback by definition (RFC 6761).
_LOCAL = "localhost"

_FRAGMENTS = 4096, 2**30
_U32 = 2**32 - 1
_U63 = 2**63 - 1
_YEAR = 31_536_000.0


class Verbatim:
    """A serializer that leaves bytes unchanged; the communicator decodes them."""

    name = "nq"
    wants_buffer = True

    def encode(self, obj: Any, /) -> Buffer:
        """Return the bytes."""
        return obj  # type: ignore[no-any-return]  # only bytes are given

    def decode(self, data: Buffer, /) -> Buffer:
        """Return the bytes."""
        return data


class _Station(Protocol):
    """The station, as its node uses it."""

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Handle messages of one peer; return those that are done."""

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a new link to a peer."""

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of the session with a peer."""


class StationNode(LayerNode):
    """A node that hands its messages to a station, which ends each of them."""

    def __init__(self, station: _Station, carrier: Carrier, config: Config) -> None:
        super().__init__(config, carrier)
        self._station = station

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Hand messages to the station."""
        return self._station.arrived(messages)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self._station.run_began(peer, renewed)

    def _session_resumed(self, peer: Peer) -> None:
        self._station.run_began(peer, False)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._station.run_ended(peer, error)


def config_of(options: CommunicatorOptions, *, server: bool, encrypts: bool) -> Config:
    """Return the Config of the node below a communicator.

    Args:
        options: The options of the communicator.
        server: Whether it listens.
        encrypts: Whether the node encrypts links; False if the transport does.

    Raises:
        ConfigError: Links would be plain off loopback; a client has no port to dial.
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
            f"links with {address} would be unencrypted: others could read and change the messages",
            "give security=SecurityOptions(…), or allow_plain=True to allow it",
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
        # The announced maximum is rounded down, and a message may have a header of one byte.
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
    """Return the certificates: a server shows its own and requests none; a client trusts the given file, or the system."""
    security = options.security
    if security is None:
        return None
    if not server:
        return TLS(ca=security.certificate or SYSTEM, check_names=True)
    if security.certificate is None or security.key is None:
        missing = "certificate" if security.certificate is None else "key"
        raise ConfigError(missing, None, "a server that encrypts needs its certificate and its key")
    # A server does not dial, so it needs no trusted CA; without this its own file would have to contain one.
    return TLS(ca=SYSTEM, certificate=security.certificate, key=security.key, client_certificate="none")
