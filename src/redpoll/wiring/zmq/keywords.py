"""Keywords of two generations: each function accepts the names of both, and an error suggests the right one."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

__all__ = ["UNSET", "Names"]

#: Not given; None has a meaning for some parameters.
UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda _: "..."})()


class Names:
    """The parameters of one function, some of which have two names.

    Args:
        function: Its name.
        own: The names in its signature.
        other: Names of the other generation, each with the own name.
    """

    def __init__(self, function: str, *own: str, **other: str) -> None:
        self._function = function
        self._own = own
        self._other = other

    def read(self, other: Mapping[str, Any], **given: Any) -> tuple[Any, ...]:
        """Return the values of some parameters.

        Args:
            other: Arguments by names that the signature does not have.
            given: Arguments by their own names; `UNSET` or None if not given.

        Raises:
            TypeError: One is missing, or given twice; or a name is unknown: the text suggests a similar one, or lists all.
        """
        for name, value in other.items():
            own = self._other.get(name)
            if own is None:
                raise TypeError(self._unexpected(name))
            if given[own] is not UNSET and given[own] is not None:
                raise TypeError(f"{self._function}() got {own!r} and {name!r}, which are one and the same")
            given[own] = value
        for name, value in given.items():
            if value is UNSET:
                raise TypeError(f"{self._function}() misses {name!r}")
        return tuple(given.values())

    def _unexpected(self, name: str) -> str:
        known = [*self._own, *self._other]
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
        return f"{self._function}() got an unexpected keyword argument {name!r}: {remedy}"
