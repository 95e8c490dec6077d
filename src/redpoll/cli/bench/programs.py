"""The group `redpoll bench`: latency and throughput of messages between two programs, and those programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from time import perf_counter, perf_counter_ns
from typing import Annotated, Any, Final, NoReturn

import typer

from redpoll import GLOBAL
from redpoll.cli.child import Program
from redpoll.cli.options import epilog, flowing

from .figures import SEED_LATENCY, SEED_THROUGHPUT, Latency, Throughput, warm_up
from .roles import CountArgument, InterfaceArgument, OtherSizeError, Role, SizeArgument, program
from .runs import Work
from .tables import latency_tables, save_latency, save_throughput, throughput_tables

__all__ = [
    "LATENCY",
    "THROUGHPUT",
    "bench",
    "lat_local",
    "lat_remote",
    "raw_latency",
    "raw_throughput",
    "thr_local",
    "thr_remote",
    "wired_latency",
    "wired_throughput",
]

_ALONE = "Without a program's name it starts a directory and both programs, one pair for each size."

#: Names owned by `lat remote` and `thr local`.
_EXCHANGE, _QUEUE = "EG", "QG"


@program
async def lat_remote(
    role: Role,
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
        role.count = lambda: queue.stats.received
        role.ready(queue=(_QUEUE, places[0]), exchange=(_EXCHANGE, places[-1]))
        message = await queue.receive()
        if len(message) != size:
            raise OtherSizeError(size, len(message))
        await exchange.send(message)
        for _ in range(warm_up(roundtrips) + roundtrips - 1):
            await exchange.send(await queue.receive())
        await exchange.flush()
    role.output.event("done", {"messages": roundtrips})


@program
async def lat_local(role: Role, size: SizeArgument, roundtrips: CountArgument) -> None:
    """Send a message, wait until it returns, and print the time: one way and round trip."""
    async with role.wiring() as wiring:
        exchange = await wiring.create_exchange("EL")
        queue = await wiring.create_queue("QL")
        await wiring.bind(exchange, _QUEUE, wait=role.wait)
        await wiring.bind(_EXCHANGE, queue, wait=role.wait)
        role.count = lambda: queue.stats.received
        data = bytes(size)
        taken: list[int] = []
        before = perf_counter_ns()
        for _ in range(warm_up(roundtrips) + roundtrips):
            await exchange.send(data)
            await queue.receive()
            after = perf_counter_ns()
            taken.append(after - before)
            before = after
    LATENCY.tell(Latency.of(size, taken[-roundtrips:]), role.output)


@program
async def thr_local(role: Role, interface: InterfaceArgument, size: SizeArgument, count: CountArgument) -> None:
    """Own a global queue, receive, and print the rate; timing begins with the first message."""
    async with role.wiring(interface) as wiring:
        queue = await wiring.create_queue(_QUEUE, scope=GLOBAL)
        role.count = lambda: queue.stats.received
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
    THROUGHPUT.tell(Throughput(size, count, seconds), role.output)


@program
async def thr_remote(role: Role, size: SizeArgument, count: CountArgument) -> None:
    """Send as fast as possible."""
    async with role.wiring() as wiring:
        exchange = await wiring.create_exchange("EL")
        await wiring.bind(exchange, _QUEUE, wait=role.wait)
        role.count = lambda: exchange.stats.sent
        data = bytes(size)
        send = exchange.send
        for _ in range(count):
            await send(data)
        await exchange.flush()
    role.output.event("done", {"messages": count})


# The two programs of one size, in child processes

_INTERFACE = "127.0.0.1"


async def wired_latency(directory: str, size: int, count: int) -> Latency:
    """Run `lat remote` and `lat local`.

    Args:
        directory: Address of their directory.
        size: Bytes of a message.
        count: Number of round trips.

    Raises:
        ChildError: One of them failed.
    """
    remote = _command("lat", "remote", directory, _INTERFACE, _INTERFACE, size, count)
    local = _command("lat", "local", directory, size, count)
    async with remote, local:
        return Latency.read((await _both(_last(remote, "ready", "done"), local.event("latency")))[1])


async def wired_throughput(directory: str, size: int, count: int) -> Throughput:
    """Run `thr local` and `thr remote`; otherwise as `wired_latency`."""
    local = _command("thr", "local", directory, _INTERFACE, size, count)
    remote = _command("thr", "remote", directory, size, count)
    async with local, remote:
        return Throughput.read((await _both(_last(local, "ready", "throughput"), remote.event("done")))[0])


async def raw_latency(size: int, count: int) -> Latency:
    """Measure the round trips of the messages over blocking sockets."""
    async with _raw("echo", size, count) as there:
        address = (await there.event("listening"))["address"]
        async with _raw("ask", size, count, address) as here:
            return Latency.read(await here.event("latency"))


async def raw_throughput(size: int, count: int) -> Throughput:
    """Send the messages one way over blocking sockets."""
    async with _raw("take", size, count) as there:
        address = (await there.event("listening"))["address"]
        async with _raw("give", size, count, address):
            return Throughput.read(await there.event("throughput"))


def _command(work: str, role: str, *arguments: object) -> Program:
    words = ("bench", work, role)
    return Program(" ".join(words), "redpoll", *words, *map(str, arguments), "--json", "--until-eof")


def _raw(role: str, *arguments: object) -> Program:
    return Program(f"bench (raw TCP, {role})", "redpoll.cli.bench.baseline", role, *map(str, arguments))


async def _last(program: Program, *names: str) -> dict[str, Any]:
    """Return the last of a program's events."""
    events = [await program.event(name) for name in names]
    return events[-1]


async def _both(*waiting: Coroutine[Any, Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of two programs; if one fails, end both and raise its error."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


LATENCY: Final = Work("latency", 10_000, SEED_LATENCY, wired_latency, raw_latency, latency_tables, save_latency)
THROUGHPUT: Final = Work(
    "throughput", 1_000_000, SEED_THROUGHPUT, wired_throughput, raw_throughput, throughput_tables, save_throughput
)

bench = typer.Typer(
    name="bench",
    help="Measure messages between two processes of one machine, or of two.",
    epilog=epilog("redpoll bench lat", "redpoll bench thr --plot charts"),
    no_args_is_help=True,
)

_COMMANDS: dict[str, tuple[Work[Any], list[str], dict[str, tuple[Callable[..., NoReturn], str]]]] = {
    "lat": (
        LATENCY,
        ["redpoll bench lat", "redpoll bench lat --sizes 1,256 --json"],
        {
            "remote": (lat_remote, "redpoll bench lat remote directory.example.org eth0 eth0 1 10000"),
            "local": (lat_local, "redpoll bench lat local directory.example.org 1 10000"),
        },
    ),
    "thr": (
        THROUGHPUT,
        ["redpoll bench thr", "redpoll bench thr --sizes 65536 --count 50000"],
        {
            "local": (thr_local, "redpoll bench thr local directory.example.org eth0 256 1000000"),
            "remote": (thr_remote, "redpoll bench thr remote directory.example.org 256 1000000"),
        },
    ),
}

for _name, (_work, _examples, _programs) in _COMMANDS.items():
    # Without a program's name it runs everything; with one, only that program.
    _group = typer.Typer(name=_name, invoke_without_command=True)
    _help = f"Measure the {_work.name} of messages to another process, beside raw TCP and ZeroMQ's table of 2008."
    _group.callback(help=f"{_help}\n\n{_ALONE}", epilog=epilog(*_examples))(_work.command)
    for _role, (_program, _example) in _programs.items():
        _group.command(_role, help=flowing(_program), epilog=epilog(_example))(_program)
    bench.add_typer(_group)
