"""Names of a package that are imported when they are first used: those of half of the library, which few programs need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_later"]


def import_later(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a `__getattr__` and a `__dir__` for a package.

    Args:
        package: Its name.
        names: The module of each name, below the package; a module right below it is an attribute as well.
    """
    modules = frozenset(each for each in names.values() if "." not in each)

    def __getattr__(name: str) -> Any:  # noqa: N807 - what it is for the package
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        module = names.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - what it is for the package
        return sorted({*vars(sys.modules[package]), *names, *modules})

    return __getattr__, __dir__
