"""The tables of `redpoll bench`, and the two charts of the first ØMQ module's documentation (extra: plot)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from redpoll.cli.report import blank, micro
from redpoll.errors import UsageError

from .figures import SEED_LATENCY, SEED_MACHINES, SEED_THROUGHPUT, Compared, Latency, Throughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plot", "latency_tables", "save_latency", "save_throughput", "throughput_tables"]

_SEED = f"C++ and Python: the table of the first ZeroMQ module: {SEED_MACHINES}."


def latency_tables(heading: str, results: Sequence[Compared[Latency]], console: Console) -> Iterator[RenderableType]:
    """Yield the output: two tables of 80 columns, one way and round trip, and an explanation.

    Args:
        heading: Heading of the first table.
        results: One row each.
        console: The console to print on.
    """
    unit = micro(console)
    yield Text(heading, style="bold")
    yield _latencies(f"one way, {unit}", results, 0.5, (1, 0.5))
    yield _latencies(f"there and back, {unit}", results, 1, (2, 1))
    yield Text(
        f"raw TCP: blocking sockets, p50. {_SEED} It printed C++ one way and Python there and back: "
        "here Python one way is half of that, and C++ there and back is twice that."
    )


def _latencies(
    work: str, results: Sequence[Compared[Latency]], share: float, seed_shares: tuple[float, float]
) -> Table:
    """Return a table of shares of round trips, beside multiples of the seed's figures."""
    rows = blank("", work, "p50", "p90", "p99", "max", "raw TCP", "C++", "Python")
    for ours, raw in results:
        times = [ours.p50, ours.p90, ours.p99, ours.max, *([] if raw is None else [raw.p50])]
        cells = [_micro(each * share) for each in times] + ["-"] * (raw is None)
        old = SEED_LATENCY.get(ours.size)
        cells += ["-", "-"] if old is None else map(_micro, map(mul, old, seed_shares))
        rows.add_row(_size(ours.size), *cells)
    return rows


def throughput_tables(heading: str, results: Sequence[Compared[Throughput]], _: Console) -> Iterator[RenderableType]:
    """Yield the output: a table of 80 columns, and an explanation; otherwise as `latency_tables`."""
    yield Text(heading, style="bold")
    rows = blank("", "size", "messages/s", "Mbit/s", "raw/s", "raw Mbit/s", "C++", "Python")
    for ours, raw in results:
        old = SEED_THROUGHPUT.get(ours.size)
        seed = ("-", "-") if old is None else map("{:,.0f}".format, old)
        rows.add_row(_size(ours.size), *_rates(ours), *(("-", "-") if raw is None else _rates(raw)), *seed)
    yield rows
    yield Text(
        "Mbit/s: of the messages' own bytes. raw: blocking sockets, 64 KiB at a time, nobody takes messages apart. "
        f"{_SEED} From 256 B up it shows that network."
    )


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def _rates(found: Throughput) -> tuple[str, str]:
    return f"{found.rate:,.0f}", f"{found.megabits:,.1f}"


def _size(size: int) -> str:
    return f"{size:,} B"


# The old table's lines are black and red, as in its chart.
_BLUE, _GREY = "tab:blue", "0.6"

_Line = tuple[str, str, str, Sequence[tuple[int, float]]]


def check_plot(folder: Path) -> None:
    """Check that charts can be made, before anything is measured.

    Raises:
        UsageError: The extra `plot` is missing, or the folder cannot be made.
    """
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise UsageError("--plot needs the extra `plot`", hint="pip install 'redpoll[plot]'") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--plot: cannot make {folder}: {error.strerror}") from error


def save_latency(folder: Path, results: Sequence[Compared[Latency]]) -> list[Path]:
    """Write the chart of latencies, in microseconds one way by the size of a message, as PNG and SVG.

    Returns:
        The files.
    """
    cpp = [(size, old * 1e6) for size, (old, _) in SEED_LATENCY.items()]
    python = [(size, old * 1e6) for size, (_, old) in SEED_LATENCY.items()]
    lines: list[_Line] = [
        ("C++, 2008", "black", "-", cpp),
        ("Python, 2008, as printed (there and back)", "red", "-", python),
        ("Python, 2008, one way (half of it)", "red", "--", [(size, old / 2) for size, old in python]),
        ("raw TCP, this machine", _GREY, "-", [(raw.size, raw.p50 * 5e5) for _, raw in results if raw]),
        ("redpoll, this machine", _BLUE, "-", [(ours.size, ours.p50 * 5e5) for ours, _ in results]),
    ]
    return _save(folder, "latency", "End-to-end latency, median", "microseconds", lines)


def save_throughput(folder: Path, results: Sequence[Compared[Throughput]]) -> list[Path]:
    """Write the chart of throughputs, in messages per second by the size of a message, as PNG and SVG.

    Returns:
        The files.
    """
    lines: list[_Line] = [
        ("C++, 2008 (1 Gbit/s)", "black", "-", [(size, old) for size, (old, _) in SEED_THROUGHPUT.items()]),
        ("Python, 2008 (1 Gbit/s)", "red", "-", [(size, old) for size, (_, old) in SEED_THROUGHPUT.items()]),
        ("raw TCP, this machine", _GREY, "-", [(raw.size, raw.rate) for _, raw in results if raw]),
        ("redpoll, this machine", _BLUE, "-", [(ours.size, ours.rate) for ours, _ in results]),
    ]
    return _save(folder, "throughput", "Throughput", "messages a second", lines)


def _save(folder: Path, name: str, title: str, unit: str, lines: Sequence[_Line]) -> list[Path]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_ylabel(unit)
    for label, colour, style, points in lines:
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker="o", markersize=3, label=label)
    _scale(axes, sorted({size for *_, points in lines for size, _ in points}))
    axes.legend(fontsize="small")
    made = []
    # Searchable text, and a file that is the same for each run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "redpoll"}):
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=120, metadata=metadata)
            made.append(path)
    return made


def _scale(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,} B" for size in sizes], rotation=30)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(visible=True, color="0.9")
