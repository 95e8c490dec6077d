"""Entry point of the command `redpoll`, outside the package, so that Ctrl-C while that is imported leaves no traceback."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command, as `redpoll.cli.main` does, which exits."""
    # Not where it is ignored, as in the background of a shell.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from redpoll.cli import main as command

    command()
