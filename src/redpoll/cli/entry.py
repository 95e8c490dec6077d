"""Entry point of the command: it runs before anything that needs the extra is imported."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from redpoll.errors import UsageError

from .codes import ExitCode

__all__ = ["main"]

#: Packages of the extra `cli`.
_EXTRA = ("typer", "rich")

#: Errors after which nothing more can be written to standard output. Errors of other files are handled elsewhere.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with one of `redpoll.cli.codes.ExitCode`.

    Args:
        arguments: The command line without the program's name; None (the default) takes `sys.argv`.

    Raises:
        SystemExit: Always; without the extra `cli` its code is 2, after an error that names the extra.
    """
    _fill_closed_descriptors()
    try:
        from .app import app
        from .output import Output
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write("redpoll: error: the command needs the extra `cli`: pip install 'redpoll[cli]'\n")
        sys.exit(ExitCode.USAGE)
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # The default during import; from here on each command handles it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            app(args=None if arguments is None else list(arguments), prog_name="redpoll")
        finally:
            _flush()
    except UsageError as error:
        Output().error(error)
        sys.exit(ExitCode.USAGE)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # What is in its buffer would be written once more as the interpreter ends, and fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        Output().error(f"cannot write standard output: {error.strerror}")
        sys.exit(ExitCode.NOT_DELIVERED)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE)


def _flush() -> None:
    """Write what is in the buffer of standard output, which a full disk refuses only now."""
    out: TextIO | None = sys.stdout  # None where it is closed
    try:
        if out is not None:
            out.flush()
    except OSError as error:
        if error.errno in _FULL:
            raise


def _fill_closed_descriptors() -> None:
    # A process started without 0, 1 or 2 would open a socket under that number, and print into it.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is the missing one: those below it are open by now.
            os.open(os.devnull, os.O_RDWR)
