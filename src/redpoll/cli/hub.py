"""`redpoll hub`: keep queues and subjects for the programs of a bus."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from redpoll.bus.engines.hub.hub import PORT, Hub
from redpoll.config import Config
from redpoll.errors import UsageError

from . import runtime
from .codes import ExitCode
from .options import CaOption, JsonOption, PlainOption, QuietOption, TlsOption, UntilEofOption, encryption_options
from .output import Output, counted
from .runtime import Stop
from .serving import serving

__all__ = ["hub"]

_HOST = "127.0.0.1"


def hub(
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="The folder; it is made where there is none.")],
    host: Annotated[
        str,
        typer.Option("--host", metavar="HOST", help="Where to listen; others than loopback need --tls and --tokens."),
    ] = _HOST,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="The port, 0 for any free one.")] = PORT,
    until_eof: UntilEofOption = False,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="FILE", help="The tokens that programs have to show, and what each allows."),
    ] = None,
    no_tokens: Annotated[
        bool, typer.Option("--no-tokens", help="Let whoever reaches it do everything, also off loopback.")
    ] = False,
    tls: TlsOption = None,
    ca: CaOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Keep queues and subjects for programs that connect to redpoll://HOST:PORT, on disk.

    What is confirmed to a program is on the disk. Killed and started again it goes on: what waits is there, and workers that
    come back keep what they hold. Ctrl-C and SIGTERM end it with exit code 0, and wait for no worker.
    """
    output = Output(json=json, quiet=quiet)
    if tokens is not None and no_tokens:
        raise UsageError("--tokens and --no-tokens contradict each other", "leave one of them out")
    config = Config(**encryption_options(plain=plain, tls=tls, ca=ca))
    made = Hub(data, port, host, tokens=False if no_tokens else tokens, config=config)
    runtime.run(lambda stop: _serve(made, stop, output, until_eof=until_eof), output)


async def _serve(made: Hub, stop: Stop, output: Output, *, until_eof: bool) -> ExitCode:
    async with serving(made, made.where, stop, until_eof=until_eof):
        there = made.holds
        held = ", ".join(counted(number, what[:-1]) for what, number in there.items())
        output.notice(f"serving {made.url}, with {held}")
        output.event("listening", {"address": str(made.address), "url": made.url, **there})
        await made.serve_forever()
    output.event("done", there)
    return ExitCode.DONE
