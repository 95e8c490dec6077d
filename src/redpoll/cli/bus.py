"""Shared parts of the commands for a bus: its URL, the connection, and printing of values."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Annotated, Any, NoReturn

import typer
from rich.cells import cell_len, set_cell_size

from redpoll.bus import Bus, Envelope, connect
from redpoll.errors import NoAnswer, RedpollError
from redpoll.wiring.directory.tokens import read_token

from . import runtime
from .codes import ExitCode
from .options import CaOption, JsonOption, QuietOption, TlsOption, TokenFileOption, command, seconds
from .output import Output, payload, printable
from .records import is_screen
from .runtime import Stop

__all__ = ["BusCommand", "as_json", "on_bus", "write"]

#: Seconds that connecting may take.
_CONNECT = 5.0


@dataclass(frozen=True, slots=True)
class BusCommand:
    """Resources of one run of a command.

    Attributes:
        bus: The bus, connected.
        output: Prints.
    """

    bus: Bus
    output: Output

    def value(self, envelope: Envelope) -> Any:
        """Return the value in an envelope for JSON; as bytes if it cannot be decoded here."""
        try:
            return as_json(self.bus.payloads.unpack(envelope))
        except RedpollError:
            return payload(bytes(envelope.body))

    def table(self, columns: str, rows: list[list[Any]]) -> None:
        """Print a table, except with JSON; numbers are right-aligned."""
        if self.output.json:
            return
        # Not by rich, which takes milliseconds for a row: a hub may have 100,000 queues.
        made = []
        for name, *column in zip(columns.split(), *rows, strict=True):
            texts = [name, *(printable(f"{each:,}" if type(each) is int else str(each)) for each in column)]
            width = max(map(cell_len, texts))
            numbers = bool(column) and all(type(each) is int for each in column)
            made.append([text.rjust(width) if numbers else set_cell_size(text, width) for text in texts])
        # Rows are cut for people only: a script reads whole ones.
        most = get_terminal_size().columns if is_screen() else sys.maxsize
        lines = ["  ".join(cells).rstrip() for cells in zip(*made, strict=True)]
        write("\n".join(line if cell_len(line) <= most else set_cell_size(line, most) for line in lines))

    def done(self, event: str, text: str, **fields: Any) -> ExitCode:
        """Print what was done, and return its exit code."""
        self.output.event(event, fields)
        self.output.notice(printable(text))
        return ExitCode.DONE


def as_json(value: Any) -> Any:
    """Return a value for JSON: bytes as text or base64, values unknown to JSON as their repr."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError):  # keys that are no text, or a circle
        return repr(value)


def _plain(value: Any) -> Any:
    return payload(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else repr(value)


def write(text: str) -> None:
    """Write a line on standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _options(
    url: Annotated[
        str,
        typer.Option(
            "--url", envvar="REDPOLL_URL", show_default=False, metavar="URL", help="URL of the bus: redpoll://HOST."
        ),
    ] = "redpoll://127.0.0.1",
    token_file: TokenFileOption = None,
    tls: TlsOption = None,
    ca: CaOption = None,
    timeout: Annotated[
        str, typer.Option("--timeout", "-t", metavar="SECONDS", help='Time limit of the command; "none" is no limit.')
    ] = "none",
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> tuple[str, dict[str, Any], float | None, Output]:
    options: dict[str, Any] = {"tls": tls, "ca": ca}
    if token_file is not None:
        options["token"] = read_token(token_file).decode(errors="replace")
    given = {name: value for name, value in options.items() if value is not None}
    return url, given, seconds(timeout), Output(json=json, quiet=quiet)


def on_bus(
    work: Callable[..., Coroutine[Any, Any, ExitCode]], alone: Callable[..., ExitCode | None] | None = None
) -> Callable[..., NoReturn]:
    """Make a command of a function, with its own arguments and the options for connecting to a bus.

    Args:
        work: Called with its `BusCommand` and its own arguments; returns the exit code. Its docstring is the command's.
        alone: Called first, with the `Output` and the arguments: with an exit code, no bus is needed.
    """

    def start(given: tuple[str, dict[str, Any], float | None, Output], own: dict[str, Any]) -> NoReturn:
        url, how, timeout, output = given

        async def do() -> ExitCode:
            try:
                async with connect(url, connect_timeout=min(timeout or _CONNECT, _CONNECT), **how) as bus:
                    async with asyncio.timeout(timeout):
                        return await work(BusCommand(bus, output), **own)
            except TimeoutError as error:
                if isinstance(error, RedpollError):
                    raise
                raise NoAnswer(None, timeout, reason="it took longer") from None

        async def until_stopped(stop: Stop) -> ExitCode:
            code = None if alone is None else alone(output, **own)
            if code is not None:
                return code
            return await stop.until(do())

        runtime.run(until_stopped, output)

    return command(work, _options, start)
