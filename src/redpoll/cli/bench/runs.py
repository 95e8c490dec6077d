"""`redpoll bench lat` and `redpoll bench thr` without a program's name: a directory, and two processes for each size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic

import typer
from rich.console import Console, RenderableType

from redpoll.cli import runtime
from redpoll.cli.codes import ExitCode
from redpoll.cli.options import JsonOption, QuietOption
from redpoll.cli.output import Output, counted
from redpoll.cli.report import title
from redpoll.errors import UsageError
from redpoll.wiring.directory import Directory

from .figures import Compared, FiguresT
from .tables import check_plot

__all__ = ["Work", "alone", "sizes_of"]

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
class Work(Generic[FiguresT]):
    """One of the two measurements.

    Attributes:
        name: Its name, and that of its event.
        most: Maximum messages of a size if no count is given.
        old: The two columns of the first module's table.
        wired: Measures a size over a directory with an exchange and a queue.
        raw: Measures it with blocking sockets.
        tables: Makes tables of results, below a heading, for a console.
        plot: Writes the chart into a folder, and returns the files.
    """

    name: str
    most: int
    old: Mapping[int, tuple[float, float]]
    wired: Callable[[str, int, int], Awaitable[FiguresT]]
    raw: Callable[[int, int], Awaitable[FiguresT]]
    tables: Callable[[str, Sequence[Compared[FiguresT]], Console], Iterable[RenderableType]]
    plot: Callable[[Path, Sequence[Compared[FiguresT]]], list[Path]]

    def count(self, size: int) -> int:
        """Return the default number of messages of a size."""
        return max(10, min(self.most, _TOTAL // size))

    def record(self, found: Compared[FiguresT]) -> dict[str, object]:
        """Return the figures of one size for JSON."""
        ours, raw = found
        old = self.old.get(ours.size)
        seed = None if old is None else dict(zip(("cpp", "python"), old, strict=True))
        return {**ours.record(), "raw": None if raw is None else raw.record(), "seed": seed}

    def tell(self, found: FiguresT, output: Output) -> None:
        """Print the figures that one program measured."""
        output.event(self.name, found.record())
        if not output.json:
            self._print([Compared(found)], "two programs")

    def _print(self, results: Sequence[Compared[FiguresT]], where: str) -> None:
        console = Console(highlight=False)
        for each in self.tables(title(where), results, console):
            console.print(each)

    def command(
        self,
        context: typer.Context,
        sizes: SizesOption = "1,16,256,4096,65536",
        count: CountOption = None,
        plot: PlotOption = None,
        json: JsonOption = False,
        quiet: QuietOption = False,
    ) -> None:
        """Start a directory and both programs for each size, unless one of these is named."""
        if alone(context):
            measured = sizes_of(sizes)
            if plot is not None:
                check_plot(plot)
            output = Output(json=json, quiet=quiet)
            runtime.run(lambda stop: stop.until(self._measure(measured, count, plot, output)), output)

    async def _measure(self, sizes: list[int], count: int | None, plot: Path | None, output: Output) -> ExitCode:
        results: list[Compared[FiguresT]] = []
        async with Directory(port=0) as directory:
            for size in sizes:
                number = count or self.count(size)
                with output.status(f"{self.name} of {counted(number, 'message')} of {counted(size, 'byte')}"):
                    raw = await self.raw(size, number)
                    found = Compared(await self.wired(str(directory.address), size, number), raw)
                output.event(self.name, self.record(found))
                results.append(found)
        if not output.json:
            self._print(results, "two processes on 127.0.0.1")
        if plot is not None:
            for path in self.plot(plot, results):
                output.notice(f"wrote {path}")
                output.event("plot", {"file": str(path)})
        return ExitCode.DONE


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


def sizes_of(text: str) -> list[int]:
    """Read the sizes of messages.

    Raises:
        UsageError: One is invalid.
    """
    sizes = []
    for each in text.split(","):
        number = int(each) if each.strip().isascii() and each.strip().isdigit() else 0
        if not 1 <= number <= _LARGEST:
            raise UsageError(
                f"--sizes: {each!r} is not a number from 1 to {_LARGEST}", "give numbers separated by commas"
            )
        sizes.append(number)
    return sizes
