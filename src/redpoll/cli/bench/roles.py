"""Shared parts of the four programs: their directory, and the handling of a lost program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer

from redpoll.address import Address
from redpoll.cli import runtime
from redpoll.cli.codes import ExitCode
from redpoll.cli.options import (
    CaOption,
    JsonOption,
    PlainOption,
    QuietOption,
    TlsOption,
    TokenFileOption,
    UntilEofOption,
    command,
    encryption_options,
)
from redpoll.cli.output import Output
from redpoll.cli.runtime import Stop
from redpoll.cli.serving import stop_at_eof
from redpoll.errors import RedpollError
from redpoll.wiring import Wiring
from redpoll.wiring.directory.tokens import read_token
from redpoll.wiring.zmq.interfaces import ANYWHERE, directory_at, place_of

__all__ = [
    "CountArgument",
    "GoneError",
    "InterfaceArgument",
    "OtherSizeError",
    "Role",
    "SizeArgument",
    "play",
    "program",
]

_LARGEST = 64 << 20

DirectoryArgument = Annotated[
    str, typer.Argument(metavar="HOST", help="Address of the directory: HOST or HOST:PORT, port 5682 by default.")
]
InterfaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="INTERFACE",
        help='Address of the queue: an address or network interface, with or without ":PORT"; "*" is all.',
    ),
]
SizeArgument = Annotated[int, typer.Argument(metavar="SIZE", min=1, max=_LARGEST, help="Bytes of a message.")]
CountArgument = Annotated[int, typer.Argument(metavar="COUNT", min=1, help="Number of measured messages.")]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0.1, help="How long to wait for the other program, and for its messages."
    ),
]


class GoneError(RedpollError):
    """The other program seems to be gone: no message arrived in time.

    Attributes:
        seconds: Time without a message.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def _text(self) -> str:
        return f"nothing came from the other program, or went to it, for {self.seconds:g} s"


class OtherSizeError(RedpollError):
    """The other program sends messages of another size.

    Attributes:
        size: Bytes that this program expects.
        came: Bytes of the received message.
    """

    def __init__(self, size: int, came: int) -> None:
        super().__init__(size, came, hint="give both programs the same size and count")
        self.size = size
        self.came = came

    def _text(self) -> str:
        return f"a message of {self.came} B came from the other program, not of {self.size} B"


@dataclass(slots=True)
class Role:
    """One of the four programs, with its command-line options.

    Attributes:
        directory: Address of the directory.
        wait: Seconds to wait for the other program's names, and for its messages.
        output: Prints the results.
        until_eof: Whether the end of standard input ends it.
        options: Options of its wirings: encryption, and the directory's token.
        count: Returns the number of messages so far; set by the program when it starts to count.
    """

    directory: Address
    wait: float
    output: Output
    until_eof: bool
    options: dict[str, Any]
    count: Callable[[], int] = int

    @classmethod
    def of(
        cls,
        host: DirectoryArgument,
        *,
        wait: WaitOption = 60.0,
        token_file: TokenFileOption = None,
        until_eof: UntilEofOption = False,
        tls: TlsOption = None,
        ca: CaOption = None,
        plain: PlainOption = False,
        quiet: QuietOption = False,
        json: JsonOption = False,
    ) -> Role:
        """Read it from the options of a command.

        Raises:
            UsageError: An option is invalid.
        """
        directory = directory_at(host)
        if directory is None:  # not for text
            raise TypeError(host)
        token = None if token_file is None else read_token(token_file)
        options = {"token": token, **encryption_options(plain=plain, tls=tls, ca=ca)}
        return cls(directory, wait, Output(json=json, quiet=quiet), until_eof, options)

    def wiring(self, interface: str | None = None) -> Wiring:
        """Return a wiring that is not started, which listens at an interface, or at its default address.

        Raises:
            UsageError: The interface is invalid.
        """
        place = place_of(interface)
        host = place.host or ("127.0.0.1" if self.directory.is_loopback else ANYWHERE)
        return Wiring(self.directory, host=host, port=place.port, **self.options)

    def ready(self, **objects: tuple[str, Wiring]) -> None:
        """Report each object's name and the address of its wiring, by its kind."""
        for kind, (name, wiring) in objects.items():
            self.output.notice(f"{kind} {name} is at {wiring.address}")
        self.output.event("ready", {kind: str(wiring.address) for kind, (_, wiring) in objects.items()})


def program(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., NoReturn]:
    """Make a command of one of the programs, with its own arguments, the directory and the options of all four.

    Args:
        work: Does the work; called with its `Role` and its own arguments. Its docstring is the command's help.
    """
    return command(work, Role.of, lambda role, own: play(role, work(role, **own)))


def play(role: Role, work: Coroutine[Any, Any, None]) -> NoReturn:
    """Run one of the programs to its end.

    Args:
        role: The options of the command line.
        work: The program; it updates the role's count.

    Raises:
        typer.Exit: Always, with the exit code; after a `GoneError` if there is no progress for `role.wait` seconds.
    """

    async def until_stopped(stop: Stop) -> ExitCode:
        watching = [asyncio.ensure_future(stop_at_eof(stop))] if role.until_eof else []
        try:
            return await stop.until(_moving(role, work))
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    runtime.run(until_stopped, role.output)


async def _moving(role: Role, program: Coroutine[Any, Any, None]) -> ExitCode:
    work = asyncio.ensure_future(program)
    before = None
    try:
        while not (await asyncio.wait({work}, timeout=role.wait))[0]:
            now = role.count()
            if now == before:
                raise GoneError(role.wait)
            before = now
        work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    return ExitCode.DONE
