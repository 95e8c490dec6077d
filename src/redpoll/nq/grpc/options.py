"""What every channel and server of this protocol is made with."""

from __future__ import annotations

__all__ = ["ACCEPTED", "LARGEST", "METHOD", "STUCK", "client_options", "server_options"]

#: The one method: a stream of bytes each way, whose messages mean nothing by themselves.
METHOD = "/redpoll.nq/Link"

#: What the other end says of a stream that it takes; one that it does not take may end a moment later.
ACCEPTED = ("redpoll-link", "1")

#: Bytes of the largest message, sent and taken: gRPC's own default. It is the same at each end, whatever its options.
LARGEST = 4 * 1024 * 1024

#: Bytes of the largest HTTP/2 frame: gRPC's default of 16 KiB costs a header and a look at the window for each.
_FRAME = 1024 * 1024

#: Milliseconds in which who connects has to speak HTTP/2, and in which who has no stream may be connected.
_STRANGER = 10_000

#: Milliseconds after which a client that is silent is asked by HTTP/2 whether it lives.
_ASK = 10_000

#: Milliseconds in which it has to answer; and in which the system at the other end has to take what is written, or the
#: connection is closed. gRPC cannot end a connection otherwise while it writes to it.
STUCK = 10_000

#: Milliseconds that never pass: a client asks nothing, as redpoll does so itself. With gRPC's own word for never `STUCK`
#: would be left out of account.
_NEVER = 2**31 - 2

_BOTH = (
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.http2.max_frame_size", _FRAME),
)


def client_options() -> tuple[tuple[str, int], ...]:
    """Those of a channel, which is used for one link: nothing is shared with another, and nothing is tried again."""
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
    """Those of a server."""
    return (
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", _STRANGER),
        ("grpc.max_connection_idle_ms", _STRANGER),
        ("grpc.keepalive_time_ms", _ASK),
        ("grpc.keepalive_timeout_ms", STUCK),
    )
