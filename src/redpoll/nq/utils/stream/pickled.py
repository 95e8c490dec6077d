"""Pickles in streams."""

from __future__ import annotations

from typing import Any

from redpoll.nq.utils.stream.view import Stream

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Python objects, read by an allow-list."""

    def dump(self, data: Any) -> Stream:
        """To come."""
        raise NotImplementedError

    def load(self, stream: Stream) -> Any:
        """To come."""
        raise NotImplementedError
