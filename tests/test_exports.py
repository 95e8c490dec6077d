"""What a module says it exports is what it has to offer."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

import redpoll
from tests.source_tree import Module, modules

# What a package imports to import, and does not hand on.
OTHERS = {"__future__", "typing", "redpoll.later"}


def library() -> list[Module]:
    """Return all modules but those of a package that hands nothing on, which is a docstring and no more.

    Those of `redpoll.compat` need other people's libraries: `nox -s compat` imports them.
    """
    return [
        module
        for module in modules()
        if module.path.stem != "__main__"
        and len(module.tree.body) > 1
        and not module.name.startswith("redpoll.compat.")
    ]


def defined(module: Module) -> set[str]:
    """Return the public classes and functions that stand in the module, but for behaviours, which are found by number."""
    return {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not any(ast.unparse(each).startswith("behaviour(") for each in node.decorator_list)
    }


def imported(module: Module) -> set[str]:
    """Return the names that a module's import statements bind, but for those that help with it."""
    return {
        alias.asname or alias.name
        for node in module.statements
        if isinstance(node, ast.ImportFrom) and node.module not in OTHERS
        for alias in node.names
    }


def test_all_is_right() -> None:
    """`__all__` holds every public class and function defined in the module, and no name that is not there."""
    for module in library():
        loaded = importlib.import_module(module.name)
        exported = getattr(loaded, "__all__", None)
        assert exported is not None, f"{module.name} has no __all__"
        assert len(set(exported)) == len(exported), module.name
        assert not [name for name in exported if not hasattr(loaded, name)], module.name
        assert not defined(module) - set(exported), module.name


def test_packages_hand_names_on() -> None:
    """An `__init__` holds nothing of its own, and exports every name that it imports."""
    for module in (module for module in library() if module.is_package):
        assert module.hands_on, module.name
        exported = set(importlib.import_module(module.name).__all__) - {"__version__"}
        assert imported(module) - {"_version"} == exported, module.name


def test_root_is_small() -> None:
    """The package root has no more names than a reader can take in, apart from errors, which stand on a page of their own."""
    errors = {name for name in redpoll.__all__ if name in vars(redpoll.errors)}
    assert len(set(redpoll.__all__) - errors) <= 40


def test_root_imports_what_is_used() -> None:
    """What few programs need is listed at the root, and imported when a name of it is first used."""
    script = """
import sys, redpoll
assert not {"redpoll.blocking", "redpoll.bus", "redpoll.nq", "redpoll.wiring"} & set(sys.modules)
assert set(redpoll.__all__) <= set(dir(redpoll))
assert redpoll.Bus is redpoll.bus.Bus
assert redpoll.wiring.Wiring is redpoll.Wiring
assert redpoll.blocking.connect.__name__ == "connect"
assert redpoll.nq.Purpose.SERVER
try:
    redpoll.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'redpoll' has no attribute 'nothing'\n"


def test_root_has_the_contract() -> None:
    """The names that a first program needs are at the root."""
    assert {"Address", "Config", "Message", "Node", "RedpollError", "run"} <= set(redpoll.__all__)
    assert {"Bus", "Requeue", "Retry", "NoRoute", "RemoteError", "TaskRejected", "connect"} <= set(redpoll.__all__)
