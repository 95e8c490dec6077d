"""Certificates as `redpoll pki` shows them: a table, the details of one, an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from .output import counted, printable

if TYPE_CHECKING:
    from redpoll.pki import Report

__all__ = ["details", "overview", "record"]


def overview(reports: Sequence[Report]) -> Table:
    """Return a table with a row for each file."""
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("file", "names", "key", "until"):
        rows.add_column(name, overflow="fold")
    rows.add_column("days", justify="right", no_wrap=True)
    rows.add_column("state", overflow="fold")
    for report in reports:
        names = "CA" if report.is_ca else ", ".join(report.names)
        cells = (report.file.name, names, report.key, f"{report.end:%Y-%m-%d}", f"{report.days_left:,}")
        state = Text(printable("; ".join(report.problems)), "red") if report.problems else Text("good", "green")
        rows.add_row(*(Text(printable(cell)) for cell in cells), state)
    return rows


def details(report: Report) -> str:
    """Return the details of one file, one per line."""
    days = "expired" if report.days_left < 0 else f"{counted(report.days_left, 'day')} left"
    matches = {None: "private key not in the file", True: "private key matches", False: "private key does not match"}
    facts = {
        "subject": report.subject,
        "names": ", ".join(report.names) or "none",
        "issuer": report.issuer,
        "serial": report.serial,
        "valid": f"{report.begin:%Y-%m-%d %H:%M} to {report.end:%Y-%m-%d %H:%M} UTC, {days}",
        "key": f"{report.key}, {matches[report.key_matches]}",
        "chain": "verifies" if report.chain_verifies else "does not verify",
        "fingerprint": report.fingerprint,
    }
    lines = [str(report.file)]
    lines += [f"  {name:<11} {value}" for name, value in facts.items() if name != "names" or not report.is_ca]
    lines += [f"  {'problem':<11} {problem}" for problem in report.problems]
    return "\n".join(map(printable, lines))


def record(report: Report) -> dict[str, object]:
    """Return the fields of the event "certificate"."""
    fields = {**asdict(report), "file": str(report.file), "names": list(report.names)}
    return {**fields, "begin": report.begin.isoformat(), "end": report.end.isoformat()}
