"""Shared parts of the four programs: their directory, and the handling of a lost program."""

from __future__ import annotations

import asyncio
import inspect
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
    "Progress",
    "Role",
    "SizeArgument",
    "command",
    "play",
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


class Progress:
    """The progress of one of the programs.

    Attributes:
        count: Returns the number of messages so far; set by the program when it starts to count.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: Callable[[], int] = int


@dataclass(frozen=True, slots=True)
class Role:
    """One of the four programs, with its command-line options.

    Attributes:
        directory: Address of the directory.
        wait: Seconds to wait for the other program's names, and for its messages.
        output: Prints the results.
        until_eof: Whether the end of standard input ends it.
        options: Options of its wirings: encryption, and the directory's token.
    """

    directory: Address
    wait: float
    output: Output
    until_eof: bool
    options: dict[str, Any]

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


def command(program: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a command of one of the programs, with its own arguments, the directory and the options of all four.

    Args:
        program: Does the work; called with its `Role`, a `Progress`, and its own arguments. Its docstring is the
            command's help.
    """
    host, *options = inspect.signature(Role.of, eval_str=True).parameters.values()
    _, _, *arguments = inspect.signature(program, eval_str=True).parameters.values()

    def run(**given: Any) -> None:
        own = {each.name: given.pop(each.name) for each in arguments}
        role = Role.of(**given)
        play(role, lambda progress: program(role, progress, **own))

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (host, *arguments, *options)]
    run.__name__ = program.__name__
    run.__doc__ = program.__doc__
    # typer reads this.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def play(role: Role, program: Callable[[Progress], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run one of the programs to its end.

    Args:
        role: The options of the command line.
        program: Does the work, and updates the progress.

    Raises:
        typer.Exit: Always, with the exit code; after a `GoneError` if there is no progress for `role.wait` seconds.
    """

    async def until_stopped(stop: Stop) -> ExitCode:
        watching = [asyncio.ensure_future(stop_at_eof(stop))] if role.until_eof else []
        try:
            code = await stop.unless(_moving(program, role.wait))
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return stop.code if code is None else code

    runtime.run(until_stopped, role.output)


async def _moving(program: Callable[[Progress], Coroutine[Any, Any, None]], patience: float) -> ExitCode:
    progress = Progress()
    work = asyncio.ensure_future(program(progress))
    before = None
    try:
        while not (await asyncio.wait({work}, timeout=patience))[0]:
            now = progress.count()
            if now == before:
                raise GoneError(patience)
            before = now
        work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    return ExitCode.DONE
