"""`redpoll bench thr`: the rate of messages from another process."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import typer
from rich.console import Console

from redpoll import GLOBAL
from redpoll.cli.options import JsonOption, QuietOption
from redpoll.cli.report import title

from . import seed
from .charts import save_throughput
from .compared import Compared
from .figures import Throughput
from .pairs import raw_throughput, wired_throughput
from .roles import CountArgument, InterfaceArgument, OtherSizeError, Progress, Role, SizeArgument, command
from .runs import CountOption, PlotOption, Run, SizesOption, Work, alone, run
from .tables import throughput_table

__all__ = ["thr", "thr_local", "thr_remote"]

#: Name owned by the local program.
_QUEUE = "QG"


def thr(
    context: typer.Context,
    sizes: SizesOption = "1,16,256,4096,65536",
    count: CountOption = None,
    plot: PlotOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure the rate of messages to another process, beside raw TCP and ZeroMQ's table of 2008.

    Without a program's name it starts a directory and both programs, one pair for each size.
    """
    if alone(context):
        run(Run.of(sizes, count, plot, json=json, quiet=quiet), _WORK)


@command
async def thr_local(
    role: Role, progress: Progress, interface: InterfaceArgument, size: SizeArgument, count: CountArgument
) -> None:
    """Own a global queue, receive, and print the rate; timing begins with the first message."""
    async with role.wiring(interface) as wiring:
        queue = await wiring.create_queue(_QUEUE, scope=GLOBAL)
        progress.count = lambda: queue.stats.received
        role.ready(queue=(_QUEUE, wiring))
        left = count - 1
        message = await queue.receive()
        started = perf_counter()
        if left:
            async for message in queue:  # noqa: B007  # the last one is looked at
                left -= 1
                if not left:
                    break
        seconds = perf_counter() - started
    if len(message) != size:
        raise OtherSizeError(size, len(message))
    found = Throughput(size, count, seconds)
    role.output.event("throughput", found.record())
    if not role.output.json:
        _show([Compared(found)], title("two programs"))


@command
async def thr_remote(role: Role, progress: Progress, size: SizeArgument, count: CountArgument) -> None:
    """Send as fast as possible."""
    async with role.wiring() as wiring:
        exchange = await wiring.create_exchange("EL")
        await wiring.bind(exchange, _QUEUE, wait=role.wait)
        progress.count = lambda: exchange.stats.sent
        data = bytes(size)
        send = exchange.send
        for _ in range(count):
            await send(data)
        await exchange.flush()
    role.output.event("done", {"messages": count})


def _show(results: Sequence[Compared[Throughput]], heading: str) -> None:
    console = Console(highlight=False)
    for each in throughput_table(heading, results):
        console.print(each)


_WORK = Work("throughput", 1_000_000, seed.THROUGHPUT, wired_throughput, raw_throughput, _show, save_throughput)
