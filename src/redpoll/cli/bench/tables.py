"""The tables of `redpoll bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from redpoll.cli.report import blank, micro

from . import seed
from .compared import Compared
from .figures import Latency, Throughput
from .seed import Column

__all__ = ["latency_tables", "throughput_table"]

_SEED = f"C++ and Python: the table of the first ZeroMQ module: {seed.MACHINES}."


def latency_tables(heading: str, results: Sequence[Compared[Latency]], console: Console) -> Iterator[RenderableType]:
    """Yield the output: two tables of 80 columns, one way and round trip, and an explanation.

    Args:
        heading: Heading of the first table.
        results: One row each.
        console: The console to print on.
    """
    unit = micro(console)
    rows = [(each.wiring, each.raw, seed.LATENCY.get(each.size)) for each in results]
    yield Text(heading, style="bold")
    yield _latencies(
        f"one way, {unit}",
        [
            (
                found.halved(),
                None if raw is None else raw.halved(),
                None if old is None else Column(old.cpp, old.python / 2),
            )
            for found, raw, old in rows
        ],
    )
    yield _latencies(
        f"there and back, {unit}",
        [(found, raw, None if old is None else Column(old.cpp * 2, old.python)) for found, raw, old in rows],
    )
    yield Text(
        f"raw TCP: blocking sockets, p50. {_SEED} It printed C++ one way and Python there and back: "
        "here Python one way is half of that, and C++ there and back is twice that."
    )


def throughput_table(heading: str, results: Sequence[Compared[Throughput]]) -> Iterator[RenderableType]:
    """Yield the output: a table of 80 columns, and an explanation.

    Args:
        heading: Heading of the table.
        results: One row each.
    """
    yield Text(heading, style="bold")
    rows = blank("")
    rows.add_column("size", no_wrap=True, justify="right")
    for name in ("messages/s", "Mbit/s", "raw/s", "raw Mbit/s", "C++", "Python"):
        rows.add_column(name, justify="right", no_wrap=True)
    for each in results:
        old = seed.THROUGHPUT.get(each.size)
        rows.add_row(
            _size(each.size),
            *_rates(each.wiring),
            *(_rates(each.raw) if each.raw is not None else ("-", "-")),
            *(("-", "-") if old is None else (f"{old.cpp:,.0f}", f"{old.python:,.0f}")),
        )
    yield rows
    yield Text(
        "Mbit/s: of the messages' own bytes. raw: blocking sockets, 64 KiB at a time, nobody takes messages apart. "
        f"{_SEED} From 256 B up it shows that network."
    )


_Row = tuple[Latency, Latency | None, Column | None]


def _latencies(work: str, found: Sequence[_Row]) -> Table:
    rows = blank("")
    rows.add_column(work, no_wrap=True, justify="right")
    for name in ("p50", "p90", "p99", "max", "raw TCP", "C++", "Python"):
        rows.add_column(name, justify="right", no_wrap=True)
    for ours, raw, old in found:
        beside = (None if raw is None else raw.p50, *((None, None) if old is None else (old.cpp, old.python)))
        values = (ours.p50, ours.p90, ours.p99, ours.max, *beside)
        rows.add_row(_size(ours.size), *("-" if value is None else f"{value * 1e6:,.1f}" for value in values))
    return rows


def _rates(found: Throughput) -> tuple[str, str]:
    return f"{found.rate:,.0f}", f"{found.megabits:,.1f}"


def _size(size: int) -> str:
    return f"{size:,} B"
