"""The source tree as the tests about it see it: module names, files, syntax trees, imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
TESTS = ROOT / "tests"


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One module of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        """Whether it is an `__init__`."""
        return self.path.stem == "__init__"

    @property
    def hands_on(self) -> bool:
        """Whether it holds nothing of its own: a docstring, imports, also those made later, and the names it exports."""
        return all(
            isinstance(node, ast.Import | ast.ImportFrom)
            or _is_text(node)
            or _assigned(node) in {"__all__", "__version__"}
            or _is_deferral(node)
            for node in self.statements
        )

    @property
    def statements(self) -> list[ast.stmt]:
        """Its statements, with those of an `if TYPE_CHECKING` in place of that."""
        return [
            inner
            for node in self.tree.body
            for inner in ([*node.body, *node.orelse] if isinstance(node, ast.If) and _is_for_types(node) else [node])
        ]


@dataclass(frozen=True, slots=True)
class Imported:
    """One imported module; `typing_only` is true below `if TYPE_CHECKING`."""

    module: str
    line: int
    typing_only: bool


@cache
def modules() -> tuple[Module, ...]:
    """Return every module below src, in the order of their names."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_text(), str(path))))
    return tuple(found)


@cache
def imports(module: Module) -> tuple[Imported, ...]:
    """Return what a module imports, wherever in it the import stands; names are absolute."""
    return tuple(_imports(module))


def _imports(module: Module) -> Iterator[Imported]:
    known = {other.name for other in modules()}
    for node, typing_only in _walk(module.tree, typing_only=False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield Imported(inner if inner in known else source, node.lineno, typing_only)


def _walk(node: ast.AST, *, typing_only: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and child in node.body and _is_for_types(node)
        yield child, typing_only or guarded
        yield from _walk(child, typing_only=typing_only or guarded)


def _is_for_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*package, *([node.module] if node.module else [])])


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_deferral(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["(__getattr__, __dir__)"]


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None
