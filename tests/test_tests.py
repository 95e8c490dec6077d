"""Every test says what it proves, guesses no time, and does not pass by leaving early."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.source_tree import TESTS

Function = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def functions_in(tree: ast.Module) -> Iterator[Function]:
    """Yield the test functions of a file, those of classes too."""
    for node in tree.body:
        for each in node.body if isinstance(node, ast.ClassDef) else (node,):
            if isinstance(each, Function) and each.name.startswith("test"):
                yield each


def own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, also those in blocks, without those of functions in it."""
    for node in body:
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from own_statements(getattr(node, field, []))


@cache
def found_in(path: Path) -> frozenset[str]:
    """Return the names of the test functions of a file."""
    return frozenset(function.name for function in functions_in(ast.parse(path.read_text(), str(path))))


def guesses(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the pauses that stand in no loop."""
    polled = {inner for loop in ast.walk(tree) if isinstance(loop, LOOPS) for inner in ast.walk(loop)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"sleep", "asyncio.sleep", "time.sleep"}
            and ast.unparse(node.args[0]) != "0"
            and node not in polled
        ):
            yield node


@cache
def findings() -> dict[str, list[str]]:
    """Return what is wrong with the files of tests/, each of which is parsed once."""
    silent, guessed, early = [], [], []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text, str(path))
        where = str(path.relative_to(TESTS))
        if "sleep(" in text:
            guessed += [f"{where}:{node.lineno} {ast.unparse(node)}" for node in guesses(tree)]
        for function in functions_in(tree) if path.name.startswith("test_") else ():
            if len((ast.get_docstring(function) or "").splitlines()) != 1:
                silent.append(f"{where}:{function.lineno} {function.name}")
            early += [
                f"{where}:{node.lineno} {function.name}"
                for node in own_statements(function.body)
                if isinstance(node, ast.If) and isinstance(node.body[0], ast.Return)
            ]
    return {"silent": silent, "guesses": guessed, "early": early}


def test_tests_say_what_they_prove() -> None:
    """Each test has a docstring of one line."""
    assert not findings()["silent"]


def test_nothing_guesses_a_time() -> None:
    """No test sleeps and hopes: a pause stands in a loop that looks for something, or is sleep(0)."""
    assert not findings()["guesses"]


def test_none_passes_by_leaving_early() -> None:
    """A test that does not apply is skipped, with the reason: no `if` of it does nothing but return."""
    assert not findings()["early"]
