"""Exit codes of the command, each with one meaning."""

from __future__ import annotations

from enum import IntEnum

from redpoll.address import Address
from redpoll.errors import ConfigError, MessageTooLarge, NoAnswer, RedpollError, UsageError

__all__ = ["CannotListenError", "ExitCode", "code_of"]


class ExitCode(IntEnum):
    """The exit codes of the command.

    A second Ctrl-C or SIGTERM (in `send`, a third) kills the program by that signal, which a shell also shows as 130 or 143.
    """

    DONE = 0
    """Everything that was asked for is done: confirmed, answered, written."""
    NOT_DELIVERED = 1
    """Something was not delivered, not confirmed, refused, or could not be read or written on the way; a certificate that
    is shown cannot be used."""
    USAGE = 2
    """The command line cannot be carried out: a bad option, address or file, or the extra `cli` is missing."""
    NO_ANSWER = 3
    """The time for an answer is over; the request itself may have been handled."""
    CANNOT_LISTEN = 4
    """The address to listen on is in use or is not one of this machine."""
    INTERRUPTED = 130
    """Ctrl-C ended it before it was done; what was open by then is settled and counted."""
    TERMINATED = 143
    """SIGTERM did the same."""


class CannotListenError(RedpollError):
    """A node could not listen at its address.

    Attributes:
        address: The address.
        reason: The system's error text.
    """

    def __init__(self, address: Address, reason: str, hint: str | None = None) -> None:
        super().__init__(address, reason, hint=hint)
        self.address = address
        self.reason = reason

    def _text(self) -> str:
        return f"cannot listen on {self.address}: {self.reason}"


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a command or failed a message."""
    if isinstance(error, CannotListenError):
        return ExitCode.CANNOT_LISTEN
    # An option that forbids an address is applied when a peer is dialled, and is then the cause of a message's error.
    forbidden = isinstance(error, UsageError) and not isinstance(error, MessageTooLarge)
    if forbidden or isinstance(error.__cause__, ConfigError):
        return ExitCode.USAGE
    if isinstance(error, NoAnswer):
        return ExitCode.NO_ANSWER
    return ExitCode.NOT_DELIVERED
