"""`redpoll hub`: run a hub, which keeps queues and subjects for the programs of a bus."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.engines.hub.hub import PORT, Hub
from redpoll.bus.engines.hub.opening import FORMAT, check_store, upgrade_store
from redpoll.config import Config
from redpoll.errors import UsageError

from . import runtime
from .bus import BusCommand, on_bus
from .codes import ExitCode
from .options import JsonOption, QuietOption, Shared, UntilEofOption, node_command
from .output import Output, counted
from .runtime import Stop
from .serving import serving

__all__ = ["HUB", "hub"]

_HOST = "127.0.0.1"


@node_command
def hub(
    shared: Shared,
    context: typer.Context,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Folder of the hub; created if missing.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="Address to listen on; off loopback, --tls and --tokens are required."
        ),
    ] = _HOST,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen on, 0 for any free one.")
    ] = PORT,
    until_eof: UntilEofOption = False,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="FILE", help="File of the tokens that programs must present, and what each allows."
        ),
    ] = None,
    no_tokens: Annotated[
        bool, typer.Option("--no-tokens", help="Allow every client everything, also off loopback.")
    ] = False,
) -> None:
    """Keep queues and subjects for programs that connect to redpoll://HOST:PORT, on disk.

    Confirmed data is on disk. After a restart, queued tasks are kept, and workers that reconnect keep the tasks that they
    hold. Ctrl-C and SIGTERM end it with exit code 0, without waiting for workers.
    """
    if context.invoked_subcommand is not None:
        if data is not None:
            raise UsageError(f"--data {data} stands before {context.invoked_subcommand}", "put it behind that")
        return
    if data is None:
        raise UsageError("a hub needs a folder", "give --data DIR")
    if tokens is not None and no_tokens:
        raise UsageError("--tokens and --no-tokens contradict each other", "omit one of them")
    made = Hub(data, port, host, tokens=False if no_tokens else tokens, config=Config(**shared.encryption))
    runtime.run(lambda stop: _serve(made, stop, shared.output, until_eof=until_eof), shared.output)


async def _serve(made: Hub, stop: Stop, output: Output, *, until_eof: bool) -> ExitCode:
    async with serving(made, made.where, stop, until_eof=until_eof):
        there = made.holds
        held = ", ".join(counted(number, what[:-1]) for what, number in there.items())
        output.notice(f"serving {made.url}, with {held}")
        output.event("listening", {"address": str(made.address), "url": made.url, **there})
        await made.serve_forever()
    output.event("done", there)
    return ExitCode.DONE


_DataOption = Annotated[str | None, typer.Option("--data", metavar="DIR", help="Folder of a stopped hub.")]


def _check_alone(output: Output, data: str | None) -> ExitCode | None:
    return None if data is None else _report(check_store(data), output)


async def _check(command: BusCommand, data: _DataOption = None) -> ExitCode:  # noqa: ARG001  # there is none
    """Check the file of a hub for damage: of a running hub, or, with --data, of a stopped one."""
    return _report(await _engine(command).check(), command.output)


def _report(problems: list[str], output: Output) -> ExitCode:
    output.event("checked", {"problems": problems})
    for line in problems:
        output.notice(line)
    if problems:
        output.notice("the file is damaged: put a backup in its place")
        return ExitCode.NOT_DELIVERED
    output.notice("the file is whole")
    return ExitCode.DONE


@on_bus
async def _backup(
    command: BusCommand,
    target: Annotated[
        str, typer.Argument(metavar="FILE", help="New file on the hub's machine; relative to its folder.")
    ],
) -> ExitCode:
    """Copy a consistent snapshot of a running hub to a new file.

    To restore it, put the copy in an empty folder as hub.db and start a hub there.
    """
    await _engine(command).backup(target)
    return command.done("saved", f"saved as {target}", file=target)


def _engine(command: BusCommand) -> HubEngine:
    if not isinstance(command.bus.engine, HubEngine):
        raise UsageError(f"{command.bus.capabilities.engine}:// is not a hub", "give the URL of a hub: redpoll://HOST")
    return command.bus.engine


def _upgrade(
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Folder of a stopped hub.")],
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Upgrade the file of a stopped hub to the format of this version. Make a copy of it first."""
    output = Output(json=json, quiet=quiet)

    async def work(_: Stop) -> ExitCode:
        before = upgrade_store(data)
        output.event("upgraded", {"from": before, "to": FORMAT})
        output.notice(f"format {FORMAT} is the newest" if before == FORMAT else f"format {before} is {FORMAT} now")
        return ExitCode.DONE

    runtime.run(work, output)


HUB = {
    "check": (on_bus(_check, _check_alone), ["redpoll hub check", "redpoll hub check --data /var/lib/redpoll"]),
    "backup": (_backup, ["redpoll hub backup /backup/hub.db --url redpoll://127.0.0.1"]),
    "upgrade": (_upgrade, ["redpoll hub upgrade --data /var/lib/redpoll"]),
}
