"""The table of `demo`, and the heading of every table."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

import redpoll

from .measure import Measurement, percentile

__all__ = ["blank", "micro", "table", "title"]


def title(what: str) -> str:
    """Return the heading of a table: the versions, the running loop, and the measured work."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    python = ".".join(map(str, sys.version_info[:3]))
    return f"redpoll {redpoll.__version__} on Python {python} with {loop}: {what}"


def blank(title: str, *columns: str) -> Table:
    """Return a table without rows, with right-aligned columns, and with a title if that is not empty."""
    rows = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        rows.add_column(name, justify="right", no_wrap=True)
    return rows


def micro(console: Console) -> str:
    """Return the unit of microseconds for a console: some have no letter for micro."""
    return "µs" if console.encoding.lower().startswith("utf") else "us"


def table(heading: str, steps: Sequence[Measurement], console: Console) -> Table:
    """Return the measurements as a table that fits 80 columns.

    Args:
        heading: Above the table.
        steps: One row each.
        console: The console to print on.
    """
    rows = blank(heading, "work", "messages", "rate/s", "p50", "p99", "p99.9", "slots", "errors")
    rows.columns[0].justify = "left"
    unit = micro(console)
    for step in steps:
        times = (_duration(percentile(step.latencies, share), unit) for share in (50, 99, 99.9))
        rows.add_row(
            step.work,
            f"{step.messages:,}",
            f"{step.rate:,.0f}",
            *(times if step.latencies else ("-", "-", "-")),
            f"{step.slots:,}",
            f"[bold red]{step.errors:,}[/]" if step.errors else "0",
        )
    return rows


def _duration(seconds: float, unit: str) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} {unit}"
