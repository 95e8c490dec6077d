"""The command: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import BenchmarkError
from benchmarks.report import machine, machine_text, row_json, row_text, warn_load
from benchmarks.rounds import Settings, compare, run_row
from benchmarks.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    make = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure redpoll beside its peers in turn, in one run. Without a name: list the benchmarks.",
    )
    make.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run, or 'all'")
    make.add_argument("--rounds", type=_positive, default=5, help="rounds, each with fresh processes (default: 5)")
    make.add_argument("--count", type=_positive, help="messages, requests or connections a job, instead of its own")
    make.add_argument(
        "--loop", choices=["asyncio", "uvloop", "both"], default="both", help="event loop (default: both)"
    )
    make.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="LIBRARY",
        help="run only this library, for instance redpoll; may be given more than once",
    )
    make.add_argument(
        "--libchirp-python",
        default=os.environ.get("REDPOLL_LIBCHIRP_PYTHON"),
        metavar="PATH",
        help="the interpreter that has libchirp (default: REDPOLL_LIBCHIRP_PYTHON, else this one)",
    )
    make.add_argument(
        "--netqueue-python",
        default=os.environ.get("REDPOLL_NETQUEUE_PYTHON"),
        metavar="PATH",
        help="the interpreter that has net-queue (default: REDPOLL_NETQUEUE_PYTHON, else this one)",
    )
    make.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured as JSON")
    return make


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than one")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 1 when a benchmark could not be run."""
    given = parser().parse_args(arguments)
    if not given.names:
        for row in ROWS.values():
            print(f"{row.name:16} {row.title}")
        return 0
    names = list(ROWS) if "all" in given.names else given.names
    if unknown := [name for name in names if name not in ROWS]:
        print(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 1
    settings = Settings(
        rounds=given.rounds,
        count=given.count,
        loops=("asyncio", "uvloop") if given.loop == "both" else (given.loop,),
        only=given.only,
        libchirp_python=given.libchirp_python,
        netqueue_python=given.netqueue_python,
    )
    return 1 if _run(names, settings, given.json) else 0


def _run(names: Sequence[str], settings: Settings, file: Path | None) -> list[BenchmarkError]:
    """Run rows; return the errors of those that could not be run, told at once: a row that lacks its peer keeps no other."""
    facts = machine()
    print(machine_text(facts))
    if warning := warn_load(facts):
        print(warning)
    written, errors = [], []
    progress = _progress if sys.stderr.isatty() else _silence
    for name in names:
        row = ROWS[name]
        try:
            results = run_row(row, settings, progress)
        except BenchmarkError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            errors.append(error)
            continue
        progress("")
        ratios = compare(row, results)
        print("\n" + row_text(row, settings, results, ratios), flush=True)
        written.append(row_json(row, results, ratios))
        if file is not None:  # after every row: an error in a later one loses nothing
            file.write_text(json.dumps({"machine": facts, "rounds": settings.rounds, "rows": written}, indent=1) + "\n")
    return errors


def _progress(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _silence(text: str) -> None:
    """Say nothing: standard error is no terminal."""


if __name__ == "__main__":
    sys.exit(main())
