"""Imports point down the layers, and the core knows neither loop nor clock."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.cli.support import environment
from tests.source_tree import Imported, Module, imports, modules

# From the bottom up; a module may import from its own line and from those above it here.
LAYERS = (
    (
        "error_root",
        "errors",
        "address",
        "checks",
        "message",
        "config",
        "stats",
        "runner",
        "platforms",
        "later",
        "locks",
    ),
    ("serializers",),
    ("wire",),
    ("tls", "pki"),
    ("transport",),
    ("node",),
    ("blocking",),
    ("nq", "wiring", "bus"),
    ("",),  # the package root, which hands names on
    ("testing", "cli", "compat"),
    ("__main__", "_redpoll_command", "_redpoll_pytest"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Modules that name as types what stands above them: they hand it on, and import it when it is used.
HANDS_ON = {"redpoll.blocking.connecting"}

# The names that each layer above the node takes from node/ and wire/; none takes any from wire/.
TAKES = {
    "": {"node": "Node NodeEvents PeerInfo Received"},
    "blocking": {
        # Nodes for threads are nodes: they put their own futures and their own consumers in.
        "node": "Node Received",
        "node.completion": "Completion",
        "node.dispatch": "check_handler",
        "node.lifecycle": "forked_error",
        "node.hooks": "NodeEvents PeerInfo",
        "node.pulling": "Consumers",
        "node.received": "HandedOut raised",
        "node.sending": (
            "ACKNOWLEDGED REQUEST UNSET Queued Unset check_options check_seconds dials_once read_answer submit"
        ),
    },
    "nq": {
        "node": "Received",
        "node.door": "MESSAGE_UNIT PIECE_FIELDS LayerNode Outgoing Payload Peer Piece is_linked peer_of why_unreachable",
        "node.lifecycle": "forked_error release_inherited",
        "node.received": "raised",
        "node.reports": "LogLimit Repeated",
        "node.sending": "check_seconds",
    },
    "wiring": {
        "node": "Node Received",
        "node.door": (
            "MESSAGE_UNIT PIECE_FIELDS LayerNode Peer Piece ask has_key_of host_of is_linked local_host peer_of remote_of"
            " why_unreachable"
        ),
        "node.hooks": "PeerInfo log_raised",
        "node.reports": "LogLimit Repeated",
        "node.sending": "UNSET Unset check_seconds",
    },
    "bus": {
        "node": "Node Received",
        "node.door": "LayerNode Peer peer_at peer_of",
        "node.reports": "Repeated",
    },
    "testing": {"node": "Node"},
    "cli": {"node": "Node"},
}

# What would make the core's decisions depend on something other than its arguments.
OUTSIDE = {"asyncio", "mmap", "os", "random", "secrets", "select", "socket", "ssl", "threading", "time", "uuid"}


def layer(name: str) -> str:
    """Return the first part below redpoll, "" for the root itself; the name of what stands beside it."""
    first, _, below = name.partition(".")
    return below.partition(".")[0] if first == "redpoll" else first


def inside(module: Module) -> list[Imported]:
    """Return the imports of a module that stay in the package."""
    return [found for found in imports(module) if found.module.split(".")[0] == "redpoll"]


def circles(*, types: bool) -> set[str]:
    """Return the modules that import themselves by way of others; with `types`, imports for types alone count too."""
    needs = {
        module.name: {found.module for found in inside(module) if types or not found.typing_only} - {module.name}
        for module in modules()
        if not module.is_package
    }
    # What imports nothing that is left is in no circle, and neither is what nothing left imports.
    while True:
        wanted = set().union(*needs.values())
        free = {name for name, others in needs.items() if name not in wanted or not others & needs.keys()}
        if not free:
            break
        needs = {name: others - free for name, others in needs.items() if name not in free}
    # A module between two circles is left too: it does not reach itself.
    return {name for name in needs if name in _reached(name, needs)}


def _reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = {name}
    while waiting:
        waiting = set().union(*(needs.get(each, set()) for each in waiting)) - reached
        reached |= waiting
    return reached


def taken() -> set[tuple[str, str, str]]:
    """Return layer, module and name of all that stands above the node and is imported from node/ or wire/."""
    return {
        (layer(module.name), node.module.removeprefix("redpoll."), alias.name)
        for module in modules()
        if RANK[layer(module.name)] > RANK["node"]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[1:2] in (["node"], ["wire"])
        for alias in node.names
    }


def test_layer_is_drawn() -> None:
    """Every module belongs to a layer."""
    assert not [module.name for module in modules() if layer(module.name) not in RANK]


def test_imports_point_down() -> None:
    """A module imports from its own layer and from those below; a plain value may name as types what options take."""
    upward = [
        f"{module.name}:{found.line} imports {found.module}"
        for module in modules()
        for found in inside(module)
        if RANK[layer(found.module)] > RANK[layer(module.name)]
        and not (found.typing_only and (layer(found.module) in {"serializers", "tls"} or module.name in HANDS_ON))
    ]
    assert not upward


def test_no_cycle() -> None:
    """No two modules need each other to be imported."""
    assert not circles(types=False)


def test_no_cycle_of_types() -> None:
    """No two modules import each other, imports for types included."""
    assert not circles(types=True)


def test_layers_use_the_door() -> None:
    """The layers above the node take from it, and from the core, the names that are listed here, and use each."""
    listed = {
        (name, module, each)
        for name, taken in TAKES.items()
        for module, names in taken.items()
        for each in names.split()
    }
    assert taken() == listed


def test_layers_reach_no_deeper() -> None:
    """Layers on a node touch neither its peers, nor the frames of messages, nor links."""
    inner = {"_peers", "frame", "receive_window", "writable_waiters", "requeue"}
    touched = [
        f"{module.name}:{node.lineno} touches {node.attr}"
        for module in modules()
        if layer(module.name) in {"nq", "wiring", "bus", "testing", "cli"}
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in inner and not module.name.startswith("redpoll.bus")
    ]
    assert not touched


def test_window_has_one_writer() -> None:
    """What is open, and the credit for what ended, are counted in one module."""
    counts = {"used_bytes", "oversized", "limit_bytes", "_due_bytes"}
    written = {
        module.name
        for module in modules()
        if layer(module.name) in {"wire", "node"}
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in counts
    }
    assert written == {"redpoll.wire.window"}


@pytest.mark.parametrize("name", ["redpoll", "redpoll.cli.app", "redpoll.testing", "redpoll.testing.plugin"])
def test_cryptography_waits(name: str) -> None:
    """Who makes no certificates does not import what makes them."""
    code = f"import sys, {name}; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_core_is_sans_io() -> None:
    """Nothing in wire/ and bus/broker/ imports a loop, a socket, a memory map, a clock, randomness or threads."""
    core = [
        module for module in modules() if layer(module.name) == "wire" or module.name.startswith("redpoll.bus.broker")
    ]
    assert core
    outside = [
        f"{module.name} imports {found.module}"
        for module in core
        for found in imports(module)
        if found.module.split(".")[0] in OUTSIDE
    ]
    assert not outside
