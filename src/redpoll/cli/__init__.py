"""The `redpoll` command: needs the extra `cli` (typer and rich)."""

from .entry import main

__all__ = ["main"]
