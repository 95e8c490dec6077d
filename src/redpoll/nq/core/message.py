"""What `get` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

__all__ = ["Message"]

DataT = TypeVar("DataT")


@dataclass(frozen=True, slots=True)
class Message(Generic[DataT]):
    """What a peer put.

    Args:
        peer: The id of the communicator that put it; ``put(x, message.peer)`` answers it.
        data: What it put, as this communicator's serializer read it.
        redelivered: Whether it may have been read before, by a process that had this communicator's id and ended, or
            because the one that put it started again before it learnt that it had arrived (default False). Messages are
            equal whatever this says.
    """

    peer: UUID
    data: DataT
    redelivered: bool = field(default=False, compare=False)
