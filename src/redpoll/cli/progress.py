"""The progress bar of `send`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from .output import Output, size
from .source import Source

__all__ = ["progress"]

#: Seconds between two updates.
_PERIOD = 0.1


@asynccontextmanager
async def progress(source: Source, output: Output, noun: str) -> AsyncIterator[None]:
    """Show the progress of `source` on standard error, if that is a terminal.

    Args:
        source: The messages being sent.
        output: Decides whether animated output is allowed.
        noun: Name of its messages: "line".
    """
    if not output.live:
        yield
        return
    bar = Progress(
        TextColumn("sending"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        console=output.console,
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task("", total=source.total, count="")

    async def draw() -> None:
        while True:
            _update(bar, task, source, noun)
            await asyncio.sleep(_PERIOD)

    with bar:
        drawing = asyncio.create_task(draw())
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)


def _update(bar: Progress, task: TaskID, source: Source, noun: str) -> None:
    count = f"{source.messages:,} {noun}s, {size(source.bytes)}"
    bar.update(task, completed=source.bytes, count=count, refresh=True)
