"""Shared parts of the listening commands: a node that announces its address, and ends on request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

from redpoll.address import Address
from redpoll.errors import ConfigError, UsageError
from redpoll.node import Node

from .codes import CannotListenError
from .output import Output, reason
from .runtime import DRAIN, Stop
from .worker import Worker

__all__ = ["Served", "announce", "serving", "stop_at_eof"]


#: Remedies by the system's error when a node cannot listen.
_HINTS = {
    errno.EADDRINUSE: "another process listens there: end it, or listen elsewhere; port 0 is any free one",
    errno.EADDRNOTAVAIL: "that is no address of this machine",
}


class Served(Protocol):
    """A server run by a command until it is asked to end: a node, or an object built on one."""

    async def start(self) -> None:
        """Listen."""

    async def stop(self, drain: float | None = ...) -> None:
        """Finish begun work within `drain` seconds, and close."""


@contextlib.asynccontextmanager
async def serving(node: Served, address: Address, stop: Stop, *, until_eof: bool) -> AsyncIterator[None]:
    """Run a server from entering to leaving.

    A stop drains it: it accepts no more messages and ends when those that it has are done, or after `DRAIN` seconds. If
    the context is left before a stop, it also drains, and refuses messages that are no longer pulled.

    Args:
        node: Not started yet.
        address: Its address, for errors.
        stop: Ends the node; set when standard input ends, if `until_eof`.
        until_eof: Whether the end of standard input ends the command.

    Raises:
        CannotListenError: The address is in use or not one of this machine.
        UsageError: `until_eof`, and standard input is closed.
    """
    if until_eof and sys.stdin is None:
        raise UsageError("standard input is closed", hint="leave out --until-eof")
    try:
        await node.start()
    except ConfigError as error:
        # Contradicting options have no cause, a refusal by the system has one. Certificates are files.
        if error.field in {"host", "port"} and isinstance(error.__cause__, OSError):
            # Not from the ConfigError, which repeats the text in terms of options.
            hint = _HINTS.get(error.__cause__.errno or 0)
            raise CannotListenError(address, reason(error.__cause__), hint) from error.__cause__
        raise
    draining = asyncio.create_task(_drain(node, stop))
    watching = [asyncio.create_task(stop_at_eof(stop))] if until_eof else []
    try:
        yield
    finally:
        if not stop.is_set():
            draining.cancel()
        for task in watching:
            task.cancel()
        await asyncio.gather(draining, *watching, return_exceptions=True)
        await node.stop(drain=DRAIN)


async def _drain(node: Served, stop: Stop) -> None:
    await stop.wait()
    await node.stop(drain=DRAIN)


def announce(node: Node[bytes], slots: int, output: Output) -> None:
    """Announce the address of a node: a notice on standard error, or with `--json` the event "listening".

    Scripts wait for it: from here on the node accepts messages.
    """
    output.notice(f"listening on {node.address}")
    output.event("listening", {"address": str(node.address), "slots": slots})


async def stop_at_eof(stop: Stop) -> None:
    """Ask the command to end when its standard input ends. Cancelling ends the wait."""
    worker = Worker("redpoll-until-eof")
    read = partial(os.read, sys.stdin.fileno(), 1 << 16)
    try:
        # An error counts as the end: nothing more can be read.
        with contextlib.suppress(OSError):
            while await worker.call(read):
                pass
    finally:
        worker.close()
    stop.set()
