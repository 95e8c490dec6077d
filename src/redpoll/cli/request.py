"""`redpoll request`: send a request and print the answer."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, NoReturn

import typer

from redpoll.config import Config
from redpoll.errors import NoAnswer, NotConfirmed, SendError, UsageError
from redpoll.message import Message
from redpoll.node import Node

from . import runtime
from .codes import ExitCode, code_of
from .options import AS_GIVEN, PeerArgument, Shared, TimeoutOption, node_command, peer_address, seconds
from .output import payload
from .records import Form, Records, is_screen
from .runtime import DRAIN, Stop
from .sink import Sink
from .source import Source

__all__ = ["request"]


@node_command
def request(
    shared: Shared,
    address: PeerArgument,
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="The request.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="PATH", help="Read the request from a file; - is standard input."),
    ] = None,
    timeout: TimeoutOption = "5",
    raw: Annotated[bool, typer.Option("--raw", help="Print the answer without adding a newline.")] = False,
) -> NoReturn:
    """Send a request and print the answer.

    The exit code is 3 if there is no answer in time, and 1 if the request was refused or not delivered.
    Ctrl-C waits for the answer to a sent request, five seconds at most.
    """
    if (message is None) == (file is None):
        raise UsageError("a request is one message", hint="give either a message or --file PATH")
    where = peer_address(address)
    config = Config(listen=False, timeout=seconds(timeout), serializer=AS_GIVEN, **shared.encryption)
    words = [] if message is None else [message]
    files = [] if file is None else [file]
    output = shared.output
    form = Form.RAW if raw else Form.SCREEN if is_screen() else Form.LINES

    async def ask(stop: Stop) -> ExitCode:
        source = Source(words, files, lines=False, limit=config.max_message_size, stop=stop)
        question = await anext(source.read(where), None)
        if question is None:
            if source.error is None:
                return stop.code
            output.error(source.error)
            return ExitCode.NOT_DELIVERED
        node: Node[bytes] = Node(config=config)
        async with Sink(None) as sink, node:
            started = time.perf_counter()
            try:
                answer = await _answer(node, question, stop)
            except (SendError, NoAnswer) as error:
                output.error(error)
                # It timed out after it was sent: only the missing answer is known.
                late = isinstance(error, NotConfirmed) and isinstance(error, TimeoutError)
                return ExitCode.NO_ANSWER if late else code_of(error)
            if answer is None:
                await node.stop(drain=0)
                return stop.code
            elapsed = round(time.perf_counter() - started, 6)
            if output.json:
                output.event("answer", {**payload(answer.data), "address": str(answer.address), "seconds": elapsed})
            else:
                await sink.write(Records(form).encode([answer]))
        return ExitCode.DONE

    runtime.run(ask, output)


async def _answer(node: Node[bytes], question: Message[bytes], stop: Stop) -> Message[bytes] | None:
    """Send a request and wait, after a stop for `DRAIN` seconds at most. None: it was withdrawn."""
    asked = node.request(question)
    await stop.unless(asyncio.wait({asked}))
    if not asked.done() and node.stats().sent:
        await asyncio.wait({asked}, timeout=DRAIN)
    if asked.done():
        return asked.result()
    asked.cancel()
    return None
