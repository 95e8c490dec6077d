"""The table of `demo`."""

from __future__ import annotations

import io

from rich.console import Console

from redpoll.cli.measure import Measurement
from redpoll.cli.report import table

STEPS = [
    Measurement("lines in order", 1_000_999, 3.1, (), 65_535, 0),
    Measurement("request, 64 open", 1_000_000, 40.0, (0.000_04, 0.002, 1.5), 64, 1_234),
]


def shown(encoding: str) -> str:
    """The table as it is printed on 80 columns."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=80, highlight=False)
    console.print(table("a title", STEPS, console))
    stream.seek(0)
    return stream.read()


def test_everything_is_there_in_80_columns() -> None:
    """With the largest figures the table has every one of them whole, and no line is longer than 80."""
    text = shown("utf-8")
    assert max(map(len, text.splitlines())) <= 80
    for word in ("lines in order", "1,000,999", "322,903", "65,535", "2.0 ms", "1.50 s", "1,234", "p99.9", "errors"):
        assert word in text


def test_it_can_be_printed_without_unicode() -> None:
    """Where the encoding has no letter for micro it is an ordinary one."""
    assert "322,903" in shown("ascii")
