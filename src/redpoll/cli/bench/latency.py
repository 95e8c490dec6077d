"""`redpoll bench lat`: the latency of a message to a queue in another process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import perf_counter_ns
from typing import Annotated

import typer
from rich.console import Console

from redpoll import GLOBAL
from redpoll.cli.options import JsonOption, QuietOption
from redpoll.cli.report import title

from . import seed
from .charts import save_latency
from .compared import Compared
from .figures import Latency, warm_up
from .pairs import raw_latency, wired_latency
from .roles import CountArgument, OtherSizeError, Progress, Role, SizeArgument, command
from .runs import CountOption, PlotOption, Run, SizesOption, Work, alone, run
from .tables import latency_tables

__all__ = ["lat", "lat_local", "lat_remote"]

#: Names owned by the remote program.
_EXCHANGE, _QUEUE = "EG", "QG"


def lat(
    context: typer.Context,
    sizes: SizesOption = "1,16,256,4096,65536",
    count: CountOption = None,
    plot: PlotOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure the latency of messages to another process, beside raw TCP and ZeroMQ's table of 2008.

    Without a program's name it starts a directory and both programs, one pair for each size.
    """
    if alone(context):
        run(Run.of(sizes, count, plot, json=json, quiet=quiet), _WORK)


@command
async def lat_remote(
    role: Role,
    progress: Progress,
    in_interface: Annotated[
        str, typer.Argument(metavar="IN", help='Address of the queue: an address or network interface, "*" is all.')
    ],
    out_interface: Annotated[
        str, typer.Argument(metavar="OUT", help="Address of the exchange; the same as IN, or another.")
    ],
    size: SizeArgument,
    roundtrips: CountArgument,
) -> None:
    """Own a global exchange and a global queue, and send each message back."""
    interfaces = in_interface, out_interface
    async with AsyncExitStack() as stack:
        # Incoming and outgoing messages may use different interfaces: two wirings then.
        places = [await stack.enter_async_context(role.wiring(each)) for each in dict.fromkeys(interfaces)]
        queue = await places[0].create_queue(_QUEUE, scope=GLOBAL)
        exchange = await places[-1].create_exchange(_EXCHANGE, scope=GLOBAL)
        progress.count = lambda: queue.stats.received
        role.ready(queue=(_QUEUE, places[0]), exchange=(_EXCHANGE, places[-1]))
        message = await queue.receive()
        if len(message) != size:
            raise OtherSizeError(size, len(message))
        await exchange.send(message)
        for _ in range(warm_up(roundtrips) + roundtrips - 1):
            await exchange.send(await queue.receive())
        await exchange.flush()
    role.output.event("done", {"messages": roundtrips})


@command
async def lat_local(role: Role, progress: Progress, size: SizeArgument, roundtrips: CountArgument) -> None:
    """Send a message, wait until it returns, and print the time: one way and round trip."""
    async with role.wiring() as wiring:
        exchange = await wiring.create_exchange("EL")
        queue = await wiring.create_queue("QL")
        await wiring.bind(exchange, _QUEUE, wait=role.wait)
        await wiring.bind(_EXCHANGE, queue, wait=role.wait)
        progress.count = lambda: queue.stats.received
        data = bytes(size)
        taken: list[int] = []
        before = perf_counter_ns()
        for _ in range(warm_up(roundtrips) + roundtrips):
            await exchange.send(data)
            await queue.receive()
            after = perf_counter_ns()
            taken.append(after - before)
            before = after
    found = Latency.of(size, taken[-roundtrips:])
    role.output.event("latency", found.record())
    if not role.output.json:
        _show([Compared(found)], title("two programs"))


def _show(results: Sequence[Compared[Latency]], heading: str) -> None:
    console = Console(highlight=False)
    for each in latency_tables(heading, results, console):
        console.print(each)


_WORK = Work("latency", 10_000, seed.LATENCY, wired_latency, raw_latency, _show, save_latency)
