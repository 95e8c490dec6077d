"""What a program adds to the names that are let in: each by its exact name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from redpoll.errors import ConfigError

__all__ = ["Allowed", "allow_by_name", "collect", "entry"]

Allowed = Mapping[tuple[str, str], Any]
"""Module and name to the object itself, or to None where only its name was given and it is looked up when it comes."""


def allow_by_name(*names: str) -> tuple[str, ...]:
    """The names for ``pickle(allow=...)``, each checked.

    Args:
        names: "module.name", exactly as the pickle says it: where the class or function was defined. A name lets in
            itself and nothing below it.

    Raises:
        ConfigError: One is the name of a module, or no name of this form.
    """
    collect(names)
    return names


def collect(allow: Iterable[Any]) -> Allowed:
    """The table of what is let in.

    Raises:
        ConfigError: An entry is neither a class, a function nor the full name of one.
    """
    if isinstance(allow, str | bytes) or not isinstance(allow, Iterable):
        raise ConfigError("allow", allow, "is no list of classes, functions or names", 'allow=["module.name"]')
    found: dict[tuple[str, str], Any] = {}
    for each in allow:
        if isinstance(each, str):
            found[_named(each)] = None
        else:
            found[_itself(each)] = each
    return found


def entry(module: str, name: str) -> str:
    """What would have to stand in `allow` to let in what has this name."""
    return f"allow=[{name}], the class itself" if "." in name else f'allow=["{module}.{name}"]'


def _named(text: str) -> tuple[str, str]:
    module, _, name = text.rpartition(".")
    if not all(part.isidentifier() for part in text.split(".")):
        raise ConfigError("allow", text, "is not of the form module.name")
    if not module or text in sys.modules:
        raise ConfigError(
            "allow",
            text,
            "is a module: it would let in all that is in it, and all that it imports, which leads to os.system",
            f'name what you mean: "{text}.SomeClass"',
        )
    return module, name


def _itself(given: Any) -> tuple[str, str]:
    if isinstance(given, ModuleType):
        raise ConfigError(
            "allow", given, "is a module: it would let in all that is in it", "name the classes that you mean"
        )
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not callable(given) or not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError("allow", given, "is neither a class, a function nor the full name of one")
    if "<" in name:
        raise ConfigError("allow", given, "has no name that can be looked up", "define it at the top of a module")
    return module, name
