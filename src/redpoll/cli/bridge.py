"""`redpoll bridge`: join two engines of a bus."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from redpoll.bus.bridge import Bridge
from redpoll.wiring.directory.tokens import read_token

from . import runtime
from .codes import ExitCode
from .options import JsonOption, QuietOption
from .output import Output, counted
from .runtime import DRAIN, Stop

__all__ = ["bridge"]

_UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="URL of an engine, or @FILE that has it.")]


def bridge(
    first: _UrlArgument,
    second: _UrlArgument,
    queue: Annotated[
        list[str], typer.Option("--queue", metavar="PATTERN", help="Names of queues: images.*, rpc:*; repeatable.")
    ] = ["*"],  # noqa: B006  # typer reads it
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="One bridge of a name is active, others wait.")
    ] = "main",
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Join two engines, so that workers and callers on either side serve each other.

    A task is held at its origin until its outcome at the other side is recorded there. On Ctrl-C and SIGTERM it takes nothing
    more, waits a few seconds for outcomes, gives the rest back, and exits with 0.
    """
    output = Output(json=json, quiet=quiet)
    urls = [read_token(each[1:]).decode(errors="replace") if each[:1] == "@" else each for each in (first, second)]
    made = Bridge(*urls, queues=queue, name=name)
    runtime.run(lambda stop: _serve(made, stop, output), output)


async def _serve(made: Bridge, stop: Stop, output: Output) -> ExitCode:
    async with made:
        output.notice(f"bridge {made.name} is {'active' if made.active else 'waiting for the end of another one'}")
        output.event("bridging", {"name": made.name, "active": made.active})
        await stop.unless(made.wait())
        await made.close(DRAIN)
    output.notice(f"{counted(made.forwarded, 'task')} forwarded, and {counted(made.events, 'event')}")
    output.event("done", {"forwarded": made.forwarded, "events": made.events})
    return ExitCode.DONE
