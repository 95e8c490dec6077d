"""Every example runs to its end by itself and prints what it says it prints."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def promised(path: Path) -> str:
    """Return what stands behind "Prints:" in the docstring of an example."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, found, printed = docstring.partition("Prints:\n\n")
    assert found, f"{path.name} does not say what it prints"
    return textwrap.dedent(printed).strip() + "\n"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(path: Path) -> None:
    """It ends with success, without a warning, and prints what its docstring promises."""
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout == promised(path)
    assert not done.stderr


def test_there_are_examples() -> None:
    """The folder is where this test looks for it."""
    assert len(list(EXAMPLES.glob("*.py"))) >= 6
