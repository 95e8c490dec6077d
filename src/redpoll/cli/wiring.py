"""`redpoll wiring`: show exchanges and queues."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.node import Node
from redpoll.wiring.directory import DEFAULT_PORT, DirectoryClient
from redpoll.wiring.directory.tokens import read_token

from . import runtime
from .codes import ExitCode
from .options import Shared, TimeoutOption, TokenFileOption, node_command, peer_address, seconds
from .output import Output, counted
from .wiring_view import FORMATS, Graph, look

__all__ = ["show"]


@node_command
def show(
    shared: Shared,
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Address of the directory: HOST:PORT, HOST alone, or unix:PATH.")
    ],
    format: Annotated[  # noqa: A002  # it is the option's name
        str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")
    ] = "text",
    timeout: TimeoutOption = "5",
    token_file: TokenFileOption = None,
) -> NoReturn:
    """Show every name in a directory, its owner's description, and the bindings.

    Unreachable owners are shown as such, and the exit code is 0. The format dot is for Graphviz, mermaid for Markdown.
    """
    if format not in FORMATS:
        raise UsageError(f"--format: unknown format {format!r}", f"one of {', '.join(FORMATS)}")
    token = None if token_file is None else read_token(token_file)
    address, limit = _directory(directory), seconds(timeout)

    async def work() -> ExitCode:
        async with DirectoryClient(address, token=token, timeout=limit, **shared.encryption) as client:
            entries = await client.list()
        async with Node(listen=False, timeout=limit, **shared.encryption) as node:
            graph = await look(entries, node, limit, token)
        _print(graph, format, shared.output)
        return ExitCode.DONE

    runtime.run(lambda stop: stop.until(work()), shared.output)


def _directory(text: str) -> Address:
    """Return the address of a directory; a host alone means the default port."""
    is_host = bool(text) and (":" not in text or (text.startswith("[") and text.endswith("]")))
    return peer_address(f"{text}:{DEFAULT_PORT}" if is_host else text)


def _print(graph: Graph, form: str, output: Output) -> None:
    if output.json:
        output.event("wiring", asdict(graph))
    else:
        sys.stdout.write(FORMATS[form](graph))
        sys.stdout.flush()
    unreached = sum(bool(process.problem) for process in graph.processes)
    if unreached:
        output.notice(f"{counted(unreached, 'owner')} not reached")
