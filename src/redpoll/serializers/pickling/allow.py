"""The names that a program allows, each by its exact name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from redpoll.errors import ConfigError

__all__ = ["Allowed", "allow_by_name", "collect", "entry"]

Allowed = Mapping[tuple[str, str], Any]
"""Module and name, to the object, or to None if only the name was given and is resolved when a pickle uses it."""


def allow_by_name(*names: str) -> tuple[str, ...]:
    """Return names for ``pickle(allow=...)``, each checked.

    Args:
        names: "module.name" as in the pickle: where the class or function is defined. A name allows itself and nothing
            below it.

    Raises:
        ConfigError: One is the name of a module, or not of this form.
    """
    collect(names)
    return names


def collect(allow: Iterable[Any]) -> Allowed:
    """Return the table of what is allowed.

    Raises:
        ConfigError: An entry is neither a class, a function nor the full name of one.
    """
    if isinstance(allow, str | bytes) or not isinstance(allow, Iterable):
        raise ConfigError("allow", allow, "is not a list of classes, functions or names", 'allow=["module.name"]')
    found: dict[tuple[str, str], Any] = {}
    for each in allow:
        if isinstance(each, str):
            found[_named(each)] = None
        else:
            found[_itself(each)] = each
    return found


def entry(module: str, name: str) -> str:
    """Return the entry of `allow` that would allow a name."""
    return f"allow=[{name}], the class itself" if "." in name else f'allow=["{module}.{name}"]'


def _named(text: str) -> tuple[str, str]:
    module, _, name = text.rpartition(".")
    if not all(part.isidentifier() for part in text.split(".")):
        raise ConfigError("allow", text, "is not of the form module.name")
    if not module or text in sys.modules:
        raise ConfigError(
            "allow",
            text,
            "is a module: that would allow everything in it, and everything it imports, down to os.system",
            f'name what you mean: "{text}.SomeClass"',
        )
    return module, name


def _itself(given: Any) -> tuple[str, str]:
    if isinstance(given, ModuleType):
        raise ConfigError("allow", given, "is a module: that would allow everything in it", "name the classes instead")
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if not callable(given) or not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError("allow", given, "is neither a class, a function nor the full name of one")
    if "<" in name:
        raise ConfigError("allow", given, "has no importable name", "define it at module level")
    return module, name
