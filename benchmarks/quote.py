"""Prints a run's ratios as the documentation quotes them: ``python -m benchmarks.quote results/FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import bar_text, value_text
from benchmarks.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).parent / "results"


def quote(run: dict[str, Any]) -> str:
    """Return a run as Markdown: the machine, and a line for each comparison.

    Args:
        run: What ``python -m benchmarks --json`` wrote.
    """
    machine = run["machine"]
    where = ", ".join(machine[key] for key in ("date", "commit", "python", "system", "processor"))
    lines = [
        f"{where}, {machine['cores']} cores; medians of {run['rounds']} rounds, and their lowest and highest.",
        "",
        "| benchmark | job | figure | redpoll | against | ratio | rounds | bar |",
        "|---|---|---|---|---|---|---|---|",
        *(line for row in run["rows"] for line in _lines(row)),
    ]
    return "\n".join(lines)


def _lines(row: dict[str, Any]) -> Iterator[str]:
    for ratio in row["ratios"]:
        # All comparisons of one figure go the same way.
        comparison = next(each for each in ROWS[row["name"]].comparisons if each.figure == ratio["figure"])
        figure = ROWS[row["name"]].figures[ratio["figure"]].title
        sign = ">=" if comparison.higher else "<="
        met = {None: "", True: "", False: " missed"}[ratio["met"]]
        bar = "" if ratio["bar"] is None else f"{sign} {bar_text(ratio['bar'])}{met}"
        value, *rest = (
            value_text(each, difference=ratio.get("difference", False))
            for each in (ratio["ratio"], *((min(ratio["rounds"]), max(ratio["rounds"])) if ratio["rounds"] else ()))
        )
        rounds = " to ".join(rest) or "all together"
        ours = ratio["ours"].removeprefix("redpoll ")
        cells = [row["name"], ratio["job"], figure, ours, ratio["theirs"] or "", value, rounds, bar]
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the file that the command line names."""
    print(quote(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
