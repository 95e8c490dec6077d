"""`redpoll listen`: print messages, or write them to a file."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import UsageError
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
from .output import Output, counted, reason, size
from .records import Form, Records, is_screen
from .runtime import Stop
from .serving import announce, serving
from .sink import Sink

__all__ = ["listen"]

#: Maximum messages per write.
_BATCH = 256

#: Seconds that a write to a pipe or a terminal may still take after a stop.
_PATIENCE = 1.0


@dataclass(slots=True)
class _Job:
    """The work of one run of the command."""

    address: Address
    config: Config
    output: Output
    path: str | None
    append: bool
    form: Form
    count: int | None
    until_eof: bool


@node_command
def listen(
    shared: Shared,
    address: ListenArgument = "2998",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the messages to a file.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append to the file.")] = False,
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
    if append and output is None:
        raise UsageError("--append needs --output")
    form = Form.RAW if not lines else Form.LINES
    if output is None:
        form = Form.JSON if shared.output.json else Form.SCREEN if lines and is_screen() else form
    where = listen_address(address)
    config = Config(**listen_options(where), auto_release=False, slots=slots, **shared.encryption)
    job = _Job(where, config, shared.output, output, append, form, count, until_eof)
    runtime.run(lambda stop: _serve(job, stop), job.output)


async def _serve(job: _Job, stop: Stop) -> ExitCode:
    sink = Sink(job.path, append=job.append)
    node: Node[bytes] = Node(config=job.config)
    taken = _Taken(node, sink, Records(job.form))
    failure = ""
    # The file is emptied only when messages can arrive.
    async with serving(node, job.address, stop, until_eof=job.until_eof), sink:
        announce(node, job.config.effective_slots, job.output)
        try:
            await taken.take(job.count, stop)
        except OSError as error:
            failure = reason(error)
    facts = {"messages": taken.messages, "bytes": taken.bytes}
    if failure:
        job.output.error(f"cannot write {sink.name}: {failure}", fields=facts)
        return ExitCode.NOT_DELIVERED
    job.output.notice(f"{counted(taken.messages, 'message')} ({size(taken.bytes)}) written")
    job.output.event("done", facts)
    return ExitCode.DONE if job.count in {None, taken.messages} else stop.code


class _Taken:
    """The messages that are pulled, written and confirmed.

    Attributes:
        messages: Number of written and confirmed messages.
        bytes: Their bytes.
    """

    def __init__(self, node: Node[bytes], sink: Sink, records: Records) -> None:
        self._node = node
        self._sink = sink
        self._records = records
        self.messages = 0
        self.bytes = 0

    async def take(self, count: int | None, stop: Stop) -> None:
        """Write and confirm messages until there were `count`, or until the node has stopped.

        Raises:
            OSError: They could not be written; they are refused.
        """
        limit = self._most(count)
        batches = self._node.batches(max=limit)
        while most := self._most(count):
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

    def _most(self, count: int | None) -> int:
        return _BATCH if count is None else min(_BATCH, count - self.messages)

    async def _write(self, data: bytes, stop: Stop) -> None:
        # The reader of a pipe may have stopped reading: a stop must not wait for it.
        writing = asyncio.ensure_future(self._sink.write(data))
        await stop.unless(asyncio.shield(writing))
        try:
            async with asyncio.timeout(_PATIENCE):
                await writing
        except TimeoutError:
            raise BlockingIOError(errno.EAGAIN, "nobody reads it") from None
