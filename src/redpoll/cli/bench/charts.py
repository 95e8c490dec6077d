"""The two charts of the first ØMQ module's documentation, with redpoll and raw TCP in them; needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from redpoll.errors import UsageError

from . import seed
from .compared import Compared
from .figures import Latency, Throughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plot", "save_latency", "save_throughput"]

#: The old table's lines are black and red, as in its chart.
_BLACK, _RED, _BLUE, _GREY = "black", "red", "tab:blue", "0.6"

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
    old = seed.LATENCY
    lines: list[_Line] = [
        ("C++, 2008", _BLACK, "-", [(size, old[size].cpp * 1e6) for size in seed.SIZES]),
        (
            "Python, 2008, as printed (there and back)",
            _RED,
            "-",
            [(size, old[size].python * 1e6) for size in seed.SIZES],
        ),
        ("Python, 2008, one way (half of it)", _RED, "--", [(size, old[size].python * 5e5) for size in seed.SIZES]),
        ("raw TCP, this machine", _GREY, "-", [(each.size, each.raw.p50 * 5e5) for each in results if each.raw]),
        ("redpoll, this machine", _BLUE, "-", [(each.size, each.wiring.p50 * 5e5) for each in results]),
    ]
    return _save(folder, "latency", "End-to-end latency, median", "microseconds", lines)


def save_throughput(folder: Path, results: Sequence[Compared[Throughput]]) -> list[Path]:
    """Write the chart of throughputs, in messages per second by the size of a message, as PNG and SVG.

    Returns:
        The files.
    """
    old = seed.THROUGHPUT
    lines: list[_Line] = [
        ("C++, 2008 (1 Gbit/s)", _BLACK, "-", [(size, old[size].cpp) for size in seed.SIZES]),
        ("Python, 2008 (1 Gbit/s)", _RED, "-", [(size, old[size].python) for size in seed.SIZES]),
        ("raw TCP, this machine", _GREY, "-", [(each.size, each.raw.rate) for each in results if each.raw]),
        ("redpoll, this machine", _BLUE, "-", [(each.size, each.wiring.rate) for each in results]),
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
