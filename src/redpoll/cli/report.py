"""The table of `demo`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from .measure import Measurement, percentile

__all__ = ["table"]


def table(title: str, steps: Sequence[Measurement], console: Console) -> Table:
    """Return the measurements as a table that fits 80 columns.

    Args:
        title: Above the table.
        steps: One row each.
        console: Where it will be printed: says whether there is a letter for micro.
    """
    rows = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    rows.add_column("work", no_wrap=True)
    for name in ("messages", "rate/s", "p50", "p99", "p99.9", "slots", "errors"):
        rows.add_column(name, justify="right", no_wrap=True)
    micro = "µs" if console.encoding.lower().startswith("utf") else "us"
    for step in steps:
        times = (_duration(percentile(step.latencies, share), micro) for share in (50, 99, 99.9))
        rows.add_row(
            step.work,
            f"{step.messages:,}",
            f"{step.rate:,.0f}",
            *(times if step.latencies else ("-", "-", "-")),
            f"{step.slots:,}",
            f"[bold red]{step.errors:,}[/]" if step.errors else "0",
        )
    return rows


def _duration(seconds: float, micro: str) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} {micro}"
