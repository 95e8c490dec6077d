"""`redpoll echo`: answer requests with their own data."""

from __future__ import annotations

from typing import NoReturn

from redpoll.config import Config
from redpoll.message import Message
from redpoll.node import Node

from . import runtime
from .codes import ExitCode
from .options import (
    ListenArgument,
    Shared,
    SlotsOption,
    UntilEofOption,
    listen_address,
    listen_options,
    node_command,
)
from .output import counted, size
from .runtime import Stop
from .serving import announce, serving

__all__ = ["echo"]


@node_command
def echo(
    shared: Shared,
    address: ListenArgument = "2998",
    slots: SlotsOption = 64,
    until_eof: UntilEofOption = False,
) -> NoReturn:
    """Answer every request with its own data.

    Messages that want no answer are confirmed and dropped. Ctrl-C answers the requests that were begun
    and ends with exit code 0.
    """
    where = listen_address(address)
    config = Config(**listen_options(where), slots=slots, **shared.encryption)
    messages = octets = 0

    def handler(message: Message[bytes]) -> bytes:
        nonlocal messages, octets
        messages += 1
        octets += len(message.data)
        return message.data

    async def answer(stop: Stop) -> ExitCode:
        node = Node(handler, config=config)
        async with serving(node, where, stop, until_eof=until_eof):
            announce(node, slots, shared.output)
            await node.serve_forever()
        shared.output.notice(f"{counted(messages, 'message')} ({size(octets)}) answered")
        shared.output.event("done", {"messages": messages, "bytes": octets})
        return ExitCode.DONE

    runtime.run(answer, shared.output)
