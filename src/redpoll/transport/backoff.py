"""The pauses between attempts to dial."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FIRST", "LONGEST", "SOON", "backoff"]

#: Times in seconds: the maximum of the first pause, the limit where growth becomes slow, and the maximum of all pauses.
FIRST = 0.02
SOON = 0.25
LONGEST = 5.0

# Keeps a limit at `SOON` plus about a twelfth of the time since the first pause; the maximum is reached after a minute.
_GROWTH = 1.0625


def backoff(random: Callable[[], float], first: float = FIRST) -> Iterator[float]:
    """Yield pauses in seconds: their limit doubles up to `SOON`, then grows by a sixteenth each time up to `LONGEST`.

    Each is drawn from the upper half of its limit, so that nodes that lost one listener do not all dial it at once.

    Args:
        random: Returns numbers from 0 up to 1.
        first: The first limit.
    """
    limit = first
    while True:
        yield limit * (0.5 + 0.5 * random())
        limit = min(2 * limit, SOON) if limit < SOON else min(_GROWTH * limit, LONGEST)
