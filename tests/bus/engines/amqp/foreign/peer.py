"""Runs Python in an environment of its own, line by line: a program with kiwiPy or oslo.messaging, for tests.

Each line of standard input is one piece of source, as JSON; the answer is a line of JSON: its value, or its exception.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def run(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a piece of source; return its value if it is an expression."""
    try:
        try:
            expression = compile(source, "<test>", "eval")
        except SyntaxError:
            exec(compile(source, "<test>", "exec"), names)
            return {"value": None}
        return {"value": eval(expression, names)}
    except BaseException as error:  # noqa: BLE001  # the test is told
        return {"error": type(error).__name__, "text": str(error)}


def main() -> None:
    """Read and answer until the end of the input. What the libraries print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    names: dict[str, Any] = {}
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), names), default=repr), file=answers, flush=True)


if __name__ == "__main__":
    main()
