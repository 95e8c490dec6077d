"""tests/ mirrors src/, and every test says what it proves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import SRC, TESTS, Module, modules

# An `__init__` that only hands names on has nothing to test; tests/test_exports.py proves that it is one.
WITH_CONTENT = [module for module in modules() if not (module.is_package and module.hands_on)]

Function = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def home(module: Module) -> Path:
    """Return where the tests of a module belong: src/redpoll/wire/link.py has tests/wire/test_link.py."""
    relative = module.path.relative_to(SRC)
    if relative.parts[0] == "redpoll":
        relative = relative.relative_to("redpoll")
    stem = relative.parent.name if module.is_package else relative.stem
    return TESTS / relative.parent / f"test_{stem.strip('_')}.py"


def found_in(path: Path) -> Iterator[Function]:
    """Yield the test functions in a file, those of classes too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, Function) and node.name.startswith("test"):
            yield node


@pytest.mark.parametrize("module", WITH_CONTENT, ids=lambda module: module.name)
def test_module_has_its_tests(module: Module) -> None:
    """A module has a test module of its own, with tests in it."""
    path = home(module)
    assert path.exists(), f"{module.name} has no {path.relative_to(TESTS.parent)}"
    assert next(found_in(path), None) is not None, f"{path.name} holds no test"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_tests_say_what_they_prove(path: Path) -> None:
    """Each test has a docstring of one line."""
    silent = [
        f"{path.name}:{function.lineno} {function.name}"
        for function in found_in(path)
        if len((ast.get_docstring(function) or "").splitlines()) != 1
    ]
    assert not silent


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_nothing_guesses_a_time(path: Path) -> None:
    """No test sleeps and hopes: a pause stands in a loop that looks for something, or is sleep(0)."""
    tree = ast.parse(path.read_text(), str(path))
    polled = {inner for loop in ast.walk(tree) if isinstance(loop, LOOPS) for inner in ast.walk(loop)}
    guesses = [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"sleep", "asyncio.sleep", "time.sleep"}
        and ast.unparse(node.args[0]) != "0"
        and node not in polled
    ]
    assert not guesses
