"""Imports point down the layers, and the core knows neither loop nor clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.support import environment
from tests.source_tree import Imported, Module, imports, modules

# From the bottom up; a module may import from its own line and from those above it here.
LAYERS = (
    ("errors", "address", "checks", "message", "config", "stats", "runner"),
    ("serializers",),
    ("wire",),
    ("tls", "pki"),
    ("transport",),
    ("node",),
    ("blocking",),
    ("nq", "wiring"),
    ("",),  # the package root, which hands names on
    ("testing", "cli"),
    ("__main__", "_redpoll_pytest"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# What would make the core's decisions depend on something other than its arguments.
OUTSIDE = {"asyncio", "os", "random", "secrets", "select", "socket", "ssl", "threading", "time", "uuid"}


def layer(name: str) -> str:
    """Return the first part below redpoll, "" for the root itself; the name of what stands beside it."""
    first, _, below = name.partition(".")
    return below.partition(".")[0] if first == "redpoll" else first


def inside(module: Module) -> list[Imported]:
    """Return the imports of a module that stay in the package."""
    return [found for found in imports(module) if found.module.split(".")[0] == "redpoll"]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_layer_is_drawn(module: Module) -> None:
    """Every module belongs to a layer."""
    assert layer(module.name) in RANK, f"{module.name}: give {layer(module.name)!r} its place in LAYERS"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_imports_point_down(module: Module) -> None:
    """A module imports from its own layer and from those below; a plain value may name as types what options take."""
    own = RANK[layer(module.name)]
    upward = [
        f"{module.path.name}:{found.line} imports {found.module}"
        for found in inside(module)
        if RANK[layer(found.module)] > own and not (found.typing_only and layer(found.module) in {"serializers", "tls"})
    ]
    assert not upward


def test_no_cycle() -> None:
    """No two modules need each other to be imported."""
    needs = {
        module.name: {found.module for found in inside(module) if not found.typing_only} - {module.name}
        for module in modules()
        if not module.is_package
    }
    while True:
        free = {name for name, wanted in needs.items() if not wanted & needs.keys()}
        if not free:
            break
        needs = {name: wanted for name, wanted in needs.items() if name not in free}
    assert not needs, f"these import one another in a circle: {sorted(needs)}"


@pytest.mark.parametrize("name", ["redpoll", "redpoll.cli.app", "redpoll.testing", "redpoll.testing.plugin"])
def test_cryptography_waits(name: str) -> None:
    """Who makes no certificates does not import what makes them."""
    code = f"import sys, {name}; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


@pytest.mark.parametrize("module", [m for m in modules() if layer(m.name) == "wire"], ids=lambda module: module.name)
def test_core_is_sans_io(module: Module) -> None:
    """Nothing in wire/ imports a loop, a socket, a clock, randomness or threads."""
    outside = {found.module for found in imports(module) if found.module.split(".")[0] in OUTSIDE}
    assert not outside
