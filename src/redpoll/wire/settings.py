"""Settings that a node hands to its links and peers: plain values, fixed for its lifetime."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from redpoll.config import Config

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Config):
    """The Config of a node that was started: the effective values, and what each start adds."""

    #: The node's identity, 16 bytes.
    identity: bytes
    #: The port announced in the handshake, 0 for none.
    port: int = 0
    slots: int = 1
    window: int = 64
    #: Random for each start of the node, 32 bits.
    epoch: int = 0
    #: Whether a large body is delivered as bytes, which costs a copy, instead of as the memory it was received into.
    flat: bool = False
    #: Seconds that acknowledgements wait for what may be written with them; twice that at most.
    patience: float = 0.0
    #: Whether nodes are served that announce nothing; if not, their links are closed as those without a handshake are.
    libchirp: bool = True

    def __post_init__(self) -> None:
        """Do nothing: the Config was checked."""

    @classmethod
    def of(cls, config: Config, *, identity: bytes, epoch: int, **others: Any) -> Settings:
        """Return the settings of a node with a Config; it announces no port yet."""
        given = {each.name: getattr(config, each.name) for each in fields(config)}
        given |= {"slots": config.effective_slots, "window": config.effective_window, "port": 0}
        given |= {"reuse_time": config.effective_reuse_time, "identity": identity}
        return cls(**given, epoch=epoch, **others)
