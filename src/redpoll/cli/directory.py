"""`redpoll directory`: run a directory of exchanges and queues."""

from __future__ import annotations

from typing import Annotated, NoReturn, TypeVar

import typer

from redpoll.address import Address
from redpoll.checks import seconds as seconds_problem
from redpoll.errors import UsageError
from redpoll.wiring.directory import DEFAULT_LEASE, DEFAULT_PORT, Directory
from redpoll.wiring.directory.settings import Settings, read_settings
from redpoll.wiring.directory.tokens import read_token

from . import runtime
from .codes import ExitCode
from .options import (
    CaOption,
    JsonOption,
    PlainOption,
    QuietOption,
    TlsOption,
    TokenFileOption,
    UntilEofOption,
    encryption_options,
)
from .output import Output, counted
from .runtime import Stop
from .serving import serving

__all__ = ["directory"]

ValueT = TypeVar("ValueT")

#: Default address to listen on.
_HOST = "127.0.0.1"


def directory(
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help=f"Address to listen on; {_HOST} by default.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help=f"Port to listen on, 0 for any free one; {DEFAULT_PORT} by default."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="TOML file with options and static names.")
    ] = None,
    token_file: TokenFileOption = None,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease",
            metavar="SECONDS",
            help=f"How long the names of a lost owner are reserved; {DEFAULT_LEASE:g} by default.",
        ),
    ] = None,
    until_eof: UntilEofOption = False,
    tls: TlsOption = None,
    ca: CaOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Run a directory, which maps the names of exchanges and queues to their owners and never handles messages.

    It stores nothing on disk: after a restart, its clients register again, and continue meanwhile.
    Options override the file. Ctrl-C ends it with exit code 0.
    """
    output = Output(json=json, quiet=quiet)
    problem = None if lease is None else seconds_problem(lease)
    if problem is not None:
        raise UsageError(f"--lease {lease:g}: it {problem}", f"the default is {DEFAULT_LEASE:g}")
    said = Settings() if config is None else read_settings(config)
    if not plain:
        plain = bool(said.plain) and tls is None and ca is None
        tls, ca = tls or said.tls, ca or said.ca
    file = said.token_file if token_file is None else token_file
    where = Address.of_host(_first(host, said.host, _HOST), _first(port, said.port, DEFAULT_PORT))
    lasting = _first(lease, said.lease, DEFAULT_LEASE)
    made = Directory(
        str(where) if where.kind == "unix" else where.host,
        where.port,
        entries=said.entries,
        token=None if file is None else read_token(file),
        lease=lasting,
        **encryption_options(plain=plain, tls=tls, ca=ca),
    )

    async def serve(stop: Stop) -> ExitCode:
        async with serving(made, where, stop, until_eof=until_eof):
            names = len(made.entries)
            there = f", with {counted(names, 'static name')}" if names else ""
            output.notice(f"listening on {made.address}{there}")
            output.event("listening", {"address": str(made.address), "lease": lasting, "names": names})
            await made.serve_forever()
            names = len(made.entries)
        output.notice(f"{counted(names, 'name')} known at the end")
        output.event("done", {"names": names})
        return ExitCode.DONE

    runtime.run(serve, output)


def _first(*values: ValueT | None) -> ValueT:
    """Return the first value that is not None; the last one never is."""
    return next(value for value in values if value is not None)
