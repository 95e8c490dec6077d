"""Options and arguments of several commands, and the texts of `--help`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.serializers import RawSerializer
from redpoll.tls import TLS

from .output import Output

__all__ = [
    "AS_GIVEN",
    "CaOption",
    "JsonOption",
    "ListenArgument",
    "PeerArgument",
    "PlainOption",
    "QuietOption",
    "Shared",
    "SlotsOption",
    "TimeoutOption",
    "TlsOption",
    "TokenFileOption",
    "UntilEofOption",
    "command",
    "encryption_options",
    "epilog",
    "flowing",
    "listen_address",
    "listen_options",
    "node_command",
    "peer_address",
    "seconds",
]

ResultT = TypeVar("ResultT")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line, on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
PlainOption = Annotated[
    bool, typer.Option("--plain", help="Allow unencrypted traffic with an address off this machine.")
]
TlsOption = Annotated[
    str | None,
    typer.Option(
        "--tls",
        metavar="FILE",
        help="Encrypt, also on this machine, with the certificate and key in FILE (redpoll pki).",
    ),
]
CaOption = Annotated[
    str | None,
    typer.Option(
        "--ca", metavar="FILE", help='Encrypt and trust the CAs in FILE, or "system"; by default those of --tls.'
    ),
]
PeerArgument = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Address to send to: HOST:PORT, [IPV6]:PORT or unix:PATH.")
]
ListenArgument = Annotated[
    str,
    typer.Argument(
        metavar="HOST:PORT|PORT", help="Address to listen on; port 0 is any free one, and a PORT alone is on 127.0.0.1."
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option("--timeout", "-t", metavar="SECONDS", help='Time limit of one message; "none" is no limit.'),
]
SlotsOption = Annotated[
    int, typer.Option("--slots", min=1, max=65_535, help="Number of messages of one sender that are handled at a time.")
]
TokenFileOption = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token of the directory or hub."),
]
UntilEofOption = Annotated[bool, typer.Option("--until-eof", help="End when standard input ends, as after Ctrl-C.")]


#: Sends the given bytes unchanged: any node may decode them with its own serializer.
AS_GIVEN = RawSerializer("any")


def listen_options(address: Address) -> dict[str, Any]:
    """Return the options of a node that listens at an address."""
    if address.kind == "unix":
        return {"host": str(address)}
    return {"host": address.host, "port": address.port}


def encryption_options(*, plain: bool, tls: str | None, ca: str | None) -> dict[str, Any]:
    """Return the node's options of encryption: plaintext off loopback only with `plain`, never with certificates.

    Raises:
        UsageError: `plain` and one of the others.
    """
    if tls is None and ca is None:
        return {"encryption": False if plain else "auto"}
    if plain:
        raise UsageError("--plain contradicts --tls and --ca", "omit --plain, or the others")
    return {"encryption": True, "tls": TLS(certificate=tls, ca=ca)}


@dataclass(frozen=True, slots=True)
class Shared:
    """Values of the options that commands for nodes have in common.

    Attributes:
        encryption: Options of the node.
        output: Prints.
    """

    encryption: dict[str, Any]
    output: Output

    @classmethod
    def of(
        cls,
        *,
        tls: TlsOption = None,
        ca: CaOption = None,
        plain: PlainOption = False,
        quiet: QuietOption = False,
        json: JsonOption = False,
    ) -> Shared:
        """Read them from the command line.

        Raises:
            UsageError: Options contradict each other.
        """
        return cls(encryption_options(plain=plain, tls=tls, ca=ca), Output(json=json, quiet=quiet))


def command(
    work: Callable[..., Any], shared: Callable[..., Any], start: Callable[[Any, dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Make a command with its own arguments and with options that it shares with others.

    Args:
        work: Its parameters behind the first are the command's own; its docstring is the command's.
        shared: Makes a value of the shared options.
        start: Runs the command, with that value and its own arguments.
    """
    _, *own = inspect.signature(work, eval_str=True).parameters.values()
    options = inspect.signature(shared, eval_str=True).parameters.values()
    required = [each for each in options if each.default is each.empty]

    def run(**given: Any) -> Any:
        arguments = {each.name: given.pop(each.name) for each in own}
        return start(shared(**given), arguments)

    ordered = (*required, *own, *(each for each in options if each not in required))
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ordered]
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    # typer reads these.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def node_command(work: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Make a command of a function whose first parameter is a `Shared`."""
    return command(work, Shared.of, lambda shared, own: work(shared, **own))


def peer_address(text: str) -> Address:
    """Read the address of a peer.

    Raises:
        UsageError: It is invalid, or no other process can have it.
    """
    address = Address.parse(text)
    if address.kind == "inproc":
        raise UsageError("an inproc: address is for nodes of one process")
    if address.kind == "tcp" and address.port == 0:
        raise UsageError("cannot send to port 0")
    return address


def listen_address(text: str) -> Address:
    """Read the address to listen on: a port alone is on 127.0.0.1.

    Raises:
        UsageError: It is invalid, or no other process can reach it.
    """
    if text[:1].isdigit() and not set(text) & set(".:"):
        if not text.isascii() or not text.isdigit() or int(text) > 65_535:
            raise UsageError(
                f"invalid port {text!r}",
                "a port is a number from 0 to 65535; to listen on another host, write HOST:PORT",
            )
        text = f"127.0.0.1:{text}"
    address = Address.parse(text)
    if address.kind == "inproc":
        raise UsageError("an inproc: address is for nodes of one process")
    return address


def seconds(text: str) -> float | None:
    """Read a time: a positive number of seconds, or "none" for no limit.

    Raises:
        UsageError: It is neither.
    """
    if text.strip().lower() == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f'--timeout: {text!r} is neither a positive number of seconds nor "none"')
    return value


def flowing(command: Callable[..., Any]) -> str:
    """Return the paragraphs of a docstring without its line breaks, which would be shown as they are."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))


def epilog(*examples: str) -> str:
    """Return the epilog: examples, one per line."""
    return "\n  ".join(["Example:" if len(examples) == 1 else "Examples:", *examples])
