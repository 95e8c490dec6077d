"""How long to wait before dialling again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FIRST", "LONGEST", "backoff"]

#: Seconds: the first wait at most, and every wait at most. A listener that comes back is found within `LONGEST`.
FIRST = 0.02
LONGEST = 0.25


def backoff(random: Callable[[], float]) -> Iterator[float]:
    """Yield waits in seconds: their limit doubles up to `LONGEST`, and each is drawn from the upper half of its limit.

    So many that lost one listener do not dial it at the same moment.

    Args:
        random: Returns numbers from 0 up to 1.
    """
    limit = FIRST
    while True:
        yield limit * (0.5 + 0.5 * random())
        limit = min(2 * limit, LONGEST)
