"""Names in a pickle for what this serializer builds itself."""

from __future__ import annotations

from typing import Any, Final, NoReturn

__all__ = ["MODULE", "Name", "named"]

#: Name of the module in pickles; part of the format.
MODULE: Final = __name__


class Name:
    """A name, pickled as if it were a function of this module. It is never called."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> NoReturn:
        """Exist, since a pickler requires a callable; only the name is used."""
        raise TypeError(f"{self.name} is a name in a pickle, not a function")

    def __reduce__(self) -> str:
        """Pickle it as a global name."""
        return self.name


_NAMES: dict[str, Name] = {}


def named(name: str) -> Name:
    """Return the only `Name` of that name, which the pickler finds in this module."""
    found = _NAMES.get(name)
    if found is None:
        found = _NAMES[name] = Name(name)
    return found


def __getattr__(name: str) -> Name:
    if name not in _NAMES:
        raise AttributeError(name)
    return _NAMES[name]
