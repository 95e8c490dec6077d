"""`redpoll wiring`: show exchanges and queues."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NoReturn

import typer

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.node import Node
from redpoll.wiring.directory import DEFAULT_PORT, DirectoryClient
from redpoll.wiring.directory.tokens import read_token

from . import runtime
from .codes import ExitCode
from .options import (
    CaOption,
    JsonOption,
    PlainOption,
    TimeoutOption,
    TlsOption,
    TokenFileOption,
    encryption_options,
    peer_address,
    seconds,
)
from .output import Output, counted
from .runtime import Stop
from .wiring_view import FORMATS, Graph, look

__all__ = ["show"]


@dataclass(frozen=True, slots=True)
class _Job:
    """The work of one run of the command."""

    address: Address
    format: str
    timeout: float | None
    token: bytes | None
    encryption: dict[str, Any]
    output: Output


def show(
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Address of the directory: HOST:PORT, HOST alone, or unix:PATH.")
    ],
    format: Annotated[  # noqa: A002  # it is the option's name
        str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")
    ] = "text",
    timeout: TimeoutOption = "5",
    token_file: TokenFileOption = None,
    tls: TlsOption = None,
    ca: CaOption = None,
    plain: PlainOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Show every name in a directory, its owner's description, and the bindings.

    Unreachable owners are shown as such, and the exit code is 0. The format dot is for Graphviz, mermaid for Markdown.
    """
    if format not in FORMATS:
        raise UsageError(f"--format: unknown format {format!r}", f"one of {', '.join(FORMATS)}")
    encryption = encryption_options(plain=plain, tls=tls, ca=ca)
    token = None if token_file is None else read_token(token_file)
    job = _Job(_directory(directory), format, seconds(timeout), token, encryption, Output(json=json))
    runtime.run(lambda stop: _until_stopped(job, stop), job.output)


def _directory(text: str) -> Address:
    """Return the address of a directory; a host alone means the default port."""
    is_host = bool(text) and (":" not in text or (text.startswith("[") and text.endswith("]")))
    return peer_address(f"{text}:{DEFAULT_PORT}" if is_host else text)


async def _until_stopped(job: _Job, stop: Stop) -> ExitCode:
    graph = await stop.unless(_look(job))
    if graph is None:
        return stop.code
    if job.output.json:
        job.output.event("wiring", asdict(graph))
    else:
        sys.stdout.write(FORMATS[job.format](graph))
        sys.stdout.flush()
    unreached = sum(bool(process.problem) for process in graph.processes)
    if unreached:
        job.output.notice(f"{counted(unreached, 'owner')} not reached")
    return ExitCode.DONE


async def _look(job: _Job) -> Graph:
    client = DirectoryClient(job.address, token=job.token, timeout=job.timeout, **job.encryption)
    async with client:
        entries = await client.list()
    async with Node(listen=False, timeout=job.timeout, **job.encryption) as node:
        return await look(entries, node, job.timeout, job.token)
