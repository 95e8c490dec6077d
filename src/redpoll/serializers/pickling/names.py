"""The names by which a pickle calls for what this serializer puts together itself."""

from __future__ import annotations

from typing import Any, Final, NoReturn

__all__ = ["MODULE", "Name", "named"]

#: What stands for the module in a pickle; part of the format.
MODULE: Final = __name__


class Name:
    """A name, pickled as that of a function in this module. Nothing is called by way of it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> NoReturn:
        """A pickler asks for something callable; only the name is used."""
        raise TypeError(f"{self.name} is a name in a pickle, and no function")

    def __reduce__(self) -> str:
        """Pickle it as a global name."""
        return self.name


_NAMES: dict[str, Name] = {}


def named(name: str) -> Name:
    """The one `Name` of that name, which the pickler finds in this module."""
    found = _NAMES.get(name)
    if found is None:
        found = _NAMES[name] = Name(name)
    return found


def __getattr__(name: str) -> Name:
    if name not in _NAMES:
        raise AttributeError(name)
    return _NAMES[name]
