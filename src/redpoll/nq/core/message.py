"""The message that `get` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

__all__ = ["Message"]

DataT = TypeVar("DataT")


@dataclass(frozen=True, slots=True)
class Message(Generic[DataT]):
    """A received message.

    Args:
        peer: The id of the sender; ``put(x, message.peer)`` answers it.
        data: The data, decoded by this communicator's serializer.
        redelivered: Whether it may have been got before: by an earlier process with this communicator's id, or
            because the sender restarted before it learned of the delivery (default False). It does not count for equality.
    """

    peer: UUID
    data: DataT
    redelivered: bool = field(default=False, compare=False)
