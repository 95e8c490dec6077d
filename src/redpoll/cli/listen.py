"""`redpoll listen`: print messages, or write them to a file."""

from __future__ import annotations

import asyncio
import errno
from typing import Annotated, NoReturn

import typer

from redpoll.config import Config
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
from .output import counted, reason, size
from .records import Form, Records, is_screen
from .runtime import Stop
from .serving import announce, serving
from .sink import Sink

__all__ = ["listen"]

#: Maximum messages per write.
_BATCH = 256

#: Seconds that a write to a pipe or a terminal may still take after a stop.
_PATIENCE = 1.0


@node_command
def listen(
    shared: Shared,
    address: ListenArgument = "2998",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the messages to a file.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines/--raw", help="Write one line per message, or its bytes unchanged.")
    ] = True,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this number of messages.")
    ] = None,
    slots: SlotsOption = 256,
    until_eof: UntilEofOption = False,
) -> NoReturn:
    """Print received messages, or write them to a file.

    A message is confirmed to its sender when it is written. The address is printed on standard error,
    with --json as the first object on standard output. On Ctrl-C it accepts no more messages, writes and
    confirms those that have arrived, refuses others, and exits with 0, unless --count was not reached.
    """
    form = Form.RAW if not lines else Form.LINES
    if output is None:
        form = Form.JSON if shared.output.json else Form.SCREEN if lines and is_screen() else form
    where = listen_address(address)
    config = Config(**listen_options(where), auto_release=False, slots=slots, **shared.encryption)

    async def serve(stop: Stop) -> ExitCode:
        sink = Sink(output)
        node: Node[bytes] = Node(config=config)
        taken = _Taken(node, sink, Records(form), count)
        failure = ""
        # The file is emptied only when messages can arrive.
        async with serving(node, where, stop, until_eof=until_eof), sink:
            announce(node, slots, shared.output)
            try:
                await taken.take(stop)
            except OSError as error:
                failure = reason(error)
        facts = {"messages": taken.messages, "bytes": taken.bytes}
        if failure:
            shared.output.error(f"cannot write {sink.name}: {failure}", fields=facts)
            return ExitCode.NOT_DELIVERED
        shared.output.notice(f"{counted(taken.messages, 'message')} ({size(taken.bytes)}) written")
        shared.output.event("done", facts)
        return ExitCode.DONE if count in {None, taken.messages} else stop.code

    runtime.run(serve, shared.output)


class _Taken:
    """The messages that are pulled, written and confirmed.

    Attributes:
        messages: Number of written and confirmed messages.
        bytes: Their bytes.
    """

    def __init__(self, node: Node[bytes], sink: Sink, records: Records, count: int | None) -> None:
        self._node = node
        self._sink = sink
        self._records = records
        self._count = count
        self.messages = 0
        self.bytes = 0

    async def take(self, stop: Stop) -> None:
        """Write and confirm messages until there were enough, or until the node has stopped.

        Raises:
            OSError: They could not be written; they are refused.
        """
        limit = self._most()
        batches = self._node.batches(max=limit)
        while most := self._most():
            if most != limit:
                batches, limit = self._node.batches(max=most), most
            batch = await anext(batches, None)
            if batch is None:
                return
            try:
                await self._write(self._records.encode(batch), stop)
            except OSError as error:
                for message in batch:
                    message.refuse(f"cannot write: {reason(error)}")
                raise
            for message in batch:
                message.release()
                self.messages += 1
                self.bytes += len(message.data)

    def _most(self) -> int:
        return _BATCH if self._count is None else min(_BATCH, self._count - self.messages)

    async def _write(self, data: bytes, stop: Stop) -> None:
        # The reader of a pipe may have stopped reading: a stop must not wait for it.
        writing = asyncio.ensure_future(self._sink.write(data))
        await stop.unless(asyncio.shield(writing))
        try:
            async with asyncio.timeout(_PATIENCE):
                await writing
        except TimeoutError:
            raise BlockingIOError(errno.EAGAIN, "nobody reads it") from None
