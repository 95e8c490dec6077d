"""Output of the commands: results on standard output, notices and errors on standard error."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from redpoll.errors import (
    ConfigError,
    DialFailed,
    DirectoryUnavailable,
    NoRoute,
    NotAuthorized,
    RedpollError,
    SendError,
    TLSError,
    UsageError,
)

from .codes import CannotListenError

__all__ = ["Output", "beginning", "counted", "payload", "printable", "reason", "remedy", "size"]

#: Maximum characters of a message quoted in an error.
_QUOTED = 60


class Output:
    """Prints for one command.

    Args:
        json: Print results and errors as JSON objects on standard output, one per line, and no notices.
        quiet: Print no notices.

    Raises:
        UsageError: `json`, and standard output is closed.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        if json and sys.stdout is None:
            raise UsageError("standard output is closed", hint="leave out --json")
        self.json = json
        self._quiet = quiet or json
        self.console = Console(stderr=True, highlight=False)
        # Lines are wrapped on a terminal only: scripts search whole lines.
        self.console.soft_wrap = not self.console.is_terminal

    @property
    def live(self) -> bool:
        """True if animated output, such as a progress bar, may be drawn on standard error."""
        return self.console.is_terminal and not self._quiet

    def notice(self, text: str) -> None:
        """Print a notice on standard error."""
        if not self._quiet:
            self.console.print(Text.assemble(("redpoll: ", "dim"), text))

    def status(self, text: str) -> AbstractContextManager[object]:
        """Show a status on standard error, if that is a terminal, until the context is left."""
        return self.console.status(text) if self.live else nullcontext()

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Write a JSON object `{"event": name, ...}` with `--json`, at once; without it, do nothing."""
        if self.json:
            sys.stdout.write(json.dumps({"event": name, **fields}) + "\n")
            sys.stdout.flush()

    def error(
        self, error: BaseException | str, *, hint: str | None = None, fields: Mapping[str, object] | None = None
    ) -> None:
        """Report an error: on standard error, and with `--json` also as the event "failed".

        Args:
            error: The error or its text.
            hint: The remedy; None is that of `remedy`.
            fields: Additional fields of the JSON object.
        """
        text = reason(error)
        hint = hint or remedy(error)
        self.console.print(Text.assemble(("redpoll: ", "dim"), ("error: ", "bold red"), printable(text)))
        if hint:
            self.console.print(Text.assemble(("redpoll: ", "dim"), ("hint: ", "cyan"), printable(hint)))
        kind = {} if isinstance(error, str) else {"kind": type(error).__name__}
        sent = {"sent": error.sent} if isinstance(error, SendError) else {}
        self.event("failed", {"error": text, "hint": hint, **kind, **sent, **(fields or {})})


def reason(error: BaseException | str) -> str:
    """Return the text of an error and of its cause, without their hints, which are about the library."""
    if isinstance(error, str):
        return error
    cause = error.__cause__
    if isinstance(error, RedpollError):
        text = _without_hint(_without_hint(str(error), error), cause)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        text = str(error) or type(error).__name__
    behind = reason(cause) if cause is not None else ""
    bare = cause._reason(getattr(error, "address", None)) if isinstance(cause, RedpollError) else behind
    return text if behind in text or bare in text else f"{text} ({behind})"


def remedy(error: BaseException | str) -> str | None:
    """Return the remedy of an error, in terms of the command, or None.

    Only the hints of a `UsageError` and of a server that is not running apply to the command; others are about the library.
    """
    for each in (error, getattr(error, "__cause__", None)):
        if isinstance(each, ConfigError) and each.field == "encryption":
            return "give --tls FILE, or add --plain if everybody on the way may read and change the messages"
        if isinstance(each, ConfigError) and each.field == "tokens" and each.hint:
            return "give --tokens FILE, or add --no-tokens to allow every client everything"
        if isinstance(each, TLSError):
            return "give --tls on both ends or on neither; `redpoll pki show` says what is wrong with a FILE"
    if isinstance(error, NotAuthorized) and error.hint is not None and "token" in error.hint:
        return "give --token-file FILE, with the token that the directory was started with, or one that the hub knows"
    if isinstance(error, NoRoute):
        return "`redpoll queue list` prints the names of the queues"
    return error.hint if isinstance(error, UsageError | DialFailed | DirectoryUnavailable | CannotListenError) else None


def _without_hint(text: str, error: BaseException | None) -> str:
    hint = error.hint if isinstance(error, RedpollError) else None
    return text.replace(f" ({hint})", "") if hint else text


def counted(number: int, noun: str) -> str:
    """Return "1 line", "2,000 lines"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: int) -> str:
    """Return a number of bytes in readable form: "17 bytes", "1.2 MB"."""
    return "1 byte" if number == 1 else decimal(number)


def payload(data: bytes) -> dict[str, str]:
    """Return the JSON field for bytes: `text` if they are UTF-8, else `base64`."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def printable(text: str) -> str:
    r"""Return the text without control characters of a terminal: `"\x1b"` becomes the four characters `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
    )


def beginning(data: bytes) -> str:
    """Return the first characters of a message, safe to print, in quotes, with "..." if there are more."""
    # A character has at most four bytes: one that is cut in half is not among the first.
    head = data[: 4 * _QUOTED]
    text = head.decode(errors="backslashreplace")
    more = "..." if len(text) > _QUOTED or len(head) < len(data) else ""
    return f'"{printable(text[:_QUOTED])}{more}"'
