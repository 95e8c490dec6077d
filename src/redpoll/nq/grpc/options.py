"""Options of every channel and server of this protocol."""

from __future__ import annotations

__all__ = ["ACCEPTED", "LARGEST", "METHOD", "STUCK", "client_options", "server_options"]

#: The one method: a stream of bytes each way, whose messages have no meaning of their own.
METHOD = "/redpoll.nq/Link"

#: Metadata with which a server accepts a stream; one that it refuses may end a moment later.
ACCEPTED = ("redpoll-link", "1")

#: Maximum size of a message, sent and received, in bytes: gRPC's own default, the same at each end whatever its
#: options.
LARGEST = 4 * 1024 * 1024

#: Maximum size of an HTTP/2 frame, in bytes: gRPC's default of 16 KiB costs a header and a window check for each.
_FRAME = 1024 * 1024

#: Milliseconds in which a new connection must speak HTTP/2, and in which one without a stream may stay open.
_STRANGER = 10_000

#: Milliseconds after which a silent client is pinged by HTTP/2.
_ASK = 10_000

#: Milliseconds in which it must answer, and in which the other system must accept written data, or the connection is
#: closed. gRPC cannot close a connection otherwise while it writes to it.
STUCK = 10_000

#: Milliseconds that never pass: a client sends no HTTP/2 pings, as redpoll has its own. gRPC's own value for never
#: would disable `STUCK`.
_NEVER = 2**31 - 2

_BOTH = (
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.http2.max_frame_size", _FRAME),
)


def client_options() -> tuple[tuple[str, int], ...]:
    """Return the options of a channel, which is used for one link: it shares nothing, and gRPC does not retry."""
    return (
        *_BOTH,
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.keepalive_time_ms", _NEVER),
        ("grpc.keepalive_timeout_ms", STUCK),
    )


def server_options() -> tuple[tuple[str, int], ...]:
    """Return the options of a server."""
    return (
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", _STRANGER),
        ("grpc.max_connection_idle_ms", _STRANGER),
        ("grpc.keepalive_time_ms", _ASK),
        ("grpc.keepalive_timeout_ms", STUCK),
    )
