"""What a module says it exports is what it has to offer."""

from __future__ import annotations

import ast
import importlib

import pytest

import redpoll
from tests.source_tree import Module, modules

# A package that hands nothing on is a docstring and no more.
LIBRARY = [module for module in modules() if module.path.stem != "__main__" and len(module.tree.body) > 1]


def defined(module: Module) -> set[str]:
    """Return the public classes and functions whose definition stands in the module."""
    return {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    }


def imported(module: Module) -> set[str]:
    """Return the names that a module's import statements bind, `annotations` aside."""
    return {
        alias.asname or alias.name
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }


@pytest.mark.parametrize("module", LIBRARY, ids=lambda module: module.name)
def test_all_is_right(module: Module) -> None:
    """`__all__` holds every public class and function defined in the module, and no name that is not there."""
    loaded = importlib.import_module(module.name)
    exported = getattr(loaded, "__all__", None)
    assert exported is not None, f"{module.name} has no __all__"
    assert len(set(exported)) == len(exported)
    assert not [name for name in exported if not hasattr(loaded, name)]
    assert not defined(module) - set(exported)


@pytest.mark.parametrize("module", [m for m in LIBRARY if m.is_package], ids=lambda module: module.name)
def test_packages_hand_names_on(module: Module) -> None:
    """An `__init__` holds nothing of its own, and exports every name that it imports."""
    assert module.hands_on
    exported = set(importlib.import_module(module.name).__all__) - {"__version__"}
    assert imported(module) - {"_version"} == exported


def test_root_is_small() -> None:
    """The package root has no more names than a reader can take in."""
    assert len(redpoll.__all__) <= 45


def test_root_has_the_contract() -> None:
    """The names that a first program needs are at the root."""
    assert {"Address", "Config", "Message", "Node", "RedpollError", "run"} <= set(redpoll.__all__)
