"""Texts of `--help`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["epilog", "flowing"]


def flowing(command: Callable[..., Any]) -> str:
    """Return the paragraphs of a docstring without its line breaks, which would be shown as they are."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))


def epilog(*examples: str) -> str:
    """Return the epilog: examples, one per line."""
    return "\n  ".join(["Example:" if len(examples) == 1 else "Examples:", *examples])
