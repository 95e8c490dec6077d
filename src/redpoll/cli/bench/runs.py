"""`redpoll bench lat` and `redpoll bench thr` without a program's name: a directory, and two processes for each size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, NoReturn, TypeVar

import typer

from redpoll.cli import runtime
from redpoll.cli.codes import ExitCode
from redpoll.cli.output import Output, counted
from redpoll.cli.report import title
from redpoll.cli.runtime import Stop
from redpoll.errors import UsageError
from redpoll.wiring.directory import Directory

from .figures import Column, Compared, Latency, Throughput
from .tables import check_plot

__all__ = ["CountOption", "PlotOption", "Run", "SizesOption", "Work", "alone", "run"]

FiguresT = TypeVar("FiguresT", Latency, Throughput)

#: Maximum bytes of a message, and of all messages of one size without a count.
_LARGEST = 64 << 20
_TOTAL = 1 << 30

SizesOption = Annotated[str, typer.Option("--sizes", metavar="LIST", help="Bytes of a message, separated by commas.")]
CountOption = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Messages of each size; by default about a second per size.")
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="DIR", help="Folder to write the chart to, as PNG and SVG (extra: plot)."),
]


@dataclass(frozen=True, slots=True)
class Run:
    """The work to measure.

    Attributes:
        sizes: Bytes of a message, in order.
        count: Messages of each size; None takes the default of the work.
        plot: Folder of the chart; None draws none.
        output: Where results go.
    """

    sizes: tuple[int, ...]
    count: int | None
    plot: Path | None
    output: Output

    @classmethod
    def of(cls, sizes: str, count: int | None, plot: Path | None, *, json: bool, quiet: bool) -> Run:
        """Read it from the options of a command.

        Raises:
            UsageError: A size is invalid, or charts cannot be made.
        """
        found = tuple(map(_size, sizes.split(",")))
        if plot is not None:
            check_plot(plot)
        return cls(found, count, plot, Output(json=json, quiet=quiet))


@dataclass(frozen=True, slots=True)
class Work(Generic[FiguresT]):
    """One of the two measurements.

    Attributes:
        name: Its name, and that of its event.
        most: Maximum messages of a size if no count is given.
        old: The two columns of the first module's table.
        wired: Measures a size over a directory with an exchange and a queue.
        raw: Measures it with blocking sockets.
        show: Prints results, below a heading.
        plot: Writes the chart into a folder, and returns the files.
    """

    name: str
    most: int
    old: Mapping[int, Column]
    wired: Callable[[str, int, int], Awaitable[FiguresT]]
    raw: Callable[[int, int], Awaitable[FiguresT]]
    show: Callable[[Sequence[Compared[FiguresT]], str], None]
    plot: Callable[[Path, Sequence[Compared[FiguresT]]], list[Path]]

    def count(self, size: int) -> int:
        """Return the default number of messages of a size."""
        return max(10, min(self.most, _TOTAL // size))

    def record(self, found: Compared[FiguresT]) -> dict[str, object]:
        """Return the figures of one size for JSON."""
        old = self.old.get(found.size)
        return {
            **found.wiring.record(),
            "raw": None if found.raw is None else found.raw.record(),
            "seed": None if old is None else {"cpp": old.cpp, "python": old.python},
        }


def alone(context: typer.Context) -> bool:
    """Return True if a command runs everything: none of its two programs is named after it.

    Raises:
        UsageError: A program is named, and options of the whole command precede it.
    """
    if context.invoked_subcommand is None:
        return True
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise UsageError(
            f"--{given[0]} has no meaning before {context.invoked_subcommand}", "give the options after it"
        )
    return False


def run(job: Run, work: Work[FiguresT]) -> NoReturn:
    """Measure each size, print the results, and make the chart.

    Raises:
        typer.Exit: Always, with the exit code.
    """

    async def until_stopped(stop: Stop) -> ExitCode:
        code = await stop.unless(_measure(job, work))
        return stop.code if code is None else code

    runtime.run(until_stopped, job.output)


async def _measure(job: Run, work: Work[FiguresT]) -> ExitCode:
    output = job.output
    results: list[Compared[FiguresT]] = []
    async with Directory(port=0) as directory:
        for size in job.sizes:
            count = work.count(size) if job.count is None else job.count
            with output.status(f"{work.name} of {counted(count, 'message')} of {counted(size, 'byte')}"):
                raw = await work.raw(size, count)
                found = Compared(await work.wired(str(directory.address), size, count), raw)
            output.event(work.name, work.record(found))
            results.append(found)
    if not output.json:
        work.show(results, title("two processes on 127.0.0.1"))
    if job.plot is not None:
        for path in work.plot(job.plot, results):
            output.notice(f"wrote {path}")
            output.event("plot", {"file": str(path)})
    return ExitCode.DONE


def _size(text: str) -> int:
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if not 1 <= number <= _LARGEST:
        raise UsageError(f"--sizes: {text!r} is not a number from 1 to {_LARGEST}", "give numbers separated by commas")
    return number
