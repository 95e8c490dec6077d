"""Streams of memoryviews."""

from __future__ import annotations

import io

__all__ = ["Stream"]


class Stream(io.BufferedIOBase):
    """To come."""
