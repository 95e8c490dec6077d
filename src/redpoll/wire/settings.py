"""Settings that a node hands to its links and peers: plain values, fixed for its lifetime."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes are in bytes, times in seconds. The defaults are those of `redpoll.Config`, which documents them."""

    #: The node's identity, 16 bytes.
    identity: bytes
    #: The port announced in the handshake, 0 for none.
    port: int = 0
    #: Random for each start of the node, 32 bits.
    epoch: int = 0
    #: Whether requests to libchirp ask for an acknowledgement: the node's mode.
    acknowledge: bool = True
    slots: int = 1
    #: How long an abandoned message without a timeout may block the next one to libchirp.
    timeout: float | None = 5.0
    window: int = 64
    window_bytes: int = 4 * MIB
    lookahead: int = 1 * MIB
    max_message_size: int = 100 * MIB
    fragment_size: int = 1 * MIB
    handshake_timeout: float | None = 10.0
    keepalive: float | None = 5.0
    reuse_time: float = 30.0
    resume: float | None = None
    transfer_timeout: float | None = 30.0
    queue_messages: int = 100_000
    queue_bytes: int = 64 * MIB
    #: Whether a large body is delivered as bytes, which costs a copy, instead of as the memory it was received into.
    flat: bool = False
    #: Whether messages wait for the last piece of a large one before them, so that they arrive in the order of sending.
    in_order: bool = False
