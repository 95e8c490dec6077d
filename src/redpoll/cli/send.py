"""`redpoll send`: messages from the command line, files, or lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import BatchError, ConfirmTimeout, MessageTooLarge, NotConfirmed, UsageError
from redpoll.message import Message
from redpoll.node import Node

from . import runtime
from .codes import ExitCode, code_of
from .options import (
    AS_GIVEN,
    PeerArgument,
    Shared,
    TimeoutOption,
    node_command,
    peer_address,
    seconds,
)
from .output import Output, beginning, counted, reason, remedy, size
from .runtime import Stop
from .source import STANDARD_INPUT, Source

__all__ = ["progress", "send"]

#: Seconds after a stop before the wait is reported: mostly it is over by then.
_PATIENCE = 0.3

#: Seconds between two updates.
_PERIOD = 0.1

_SLOW_HINT = "it may have been handled, or still be: the listener is slower than --timeout, or stands still"

_RETRY_HINT = (
    "it may have been handled; --retry N sends it again, and a redpoll listener that still runs then handles it once"
)


@dataclass(frozen=True, slots=True)
class _Job:
    """The work of one run of the command."""

    address: Address
    words: list[str]
    files: list[str]
    lines: bool
    retry: int
    config: Config
    output: Output

    @property
    def noun(self) -> str:
        return "line" if self.lines else "message"

    @property
    def verb(self) -> str:
        return "confirmed" if self.config.acknowledge else "sent"


@node_command
def send(
    shared: Shared,
    address: PeerArgument,
    messages: Annotated[list[str] | None, typer.Argument(metavar="MESSAGE", help="Messages, one per argument.")] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="PATH", help="Send a file as one message; - is standard input. Repeatable."
        ),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="Send each line of standard input, or of the files, as one message.")
    ] = False,
    timeout: TimeoutOption = "5",
    retry: Annotated[int, typer.Option("--retry", min=0, help="Number of times to resend an unconfirmed message.")] = 0,
    no_acknowledge: Annotated[
        bool,
        typer.Option(
            "--no-acknowledge", help="Do not wait for confirmations: faster, but lost messages are not reported."
        ),
    ] = False,
) -> NoReturn:
    """Send messages in order and wait until each is done.

    The exit code is 0 if every message was confirmed. Otherwise it is 1, and the first unconfirmed message
    is named: those before it are done; it and later ones may or may not be. On Ctrl-C, it reads no more
    input and waits for open messages; a second one names the first unconfirmed message and ends.
    """
    words, files = messages or [], file or []
    if lines and not files:
        files = [STANDARD_INPUT]
    if lines and words:
        raise UsageError("messages are either arguments or lines", hint="omit --lines, or the messages")
    if not words and not files:
        raise UsageError("nothing to send", hint="give messages, --file PATH or --lines")
    config = Config(
        listen=False,
        acknowledge=not no_acknowledge,
        timeout=seconds(timeout),
        serializer=AS_GIVEN,
        **shared.encryption,
        in_order=True,
    )
    job = _Job(peer_address(address), words, files, lines, retry, config, shared.output)
    runtime.run(lambda stop: _deliver(job, stop), shared.output)


async def _deliver(job: _Job, stop: Stop) -> ExitCode:
    source = Source(job.words, job.files, lines=job.lines, limit=job.config.max_message_size, stop=stop)
    failure: BatchError | None = None
    started = time.perf_counter()
    node: Node[bytes] = Node(config=job.config)
    async with node, progress(source, job.output, job.noun):
        hurrying = asyncio.create_task(_hurry(job, node, stop))
        try:
            confirmed = await node.send_many(source.read(job.address), retry=job.retry)
        except BatchError as error:
            failure, confirmed = error, error.completed
        finally:
            hurrying.cancel()
    facts = {job.verb: confirmed, "seconds": round(time.perf_counter() - started, 6)}
    return _report(job, source, facts, failure, stop)


async def _hurry(job: _Job, node: Node[bytes], stop: Stop) -> None:
    """Report after a stop what it waits for; end the wait at a second one."""
    await stop.wait()
    again = asyncio.ensure_future(stop.wait_again())
    try:
        await asyncio.wait({again}, timeout=_PATIENCE)
        if not again.done():
            stats = node.stats()
            linked = any(peer.connected for peer in node.peers)
            job.output.notice(
                f"waiting for {job.address}, {'' if linked else 'to which there is no link, '}which has"
                f" {counted(stats.in_flight + stats.queued, job.noun)} to {'confirm' if job.config.acknowledge else 'take'};"
                " Ctrl-C again waits no longer"
            )
            await again
        # Each open message fails now, and reports whether it was sent.
        await node.stop(0)
    finally:
        again.cancel()


def _report(job: _Job, source: Source, facts: dict[str, float], failure: BatchError | None, stop: Stop) -> ExitCode:
    if failure is not None:
        _report_failure(job, source, facts, failure, urgent=stop.is_urgent)
        return stop.code if stop.is_urgent else code_of(failure.error)
    done = f"{counted(int(facts[job.verb]), job.noun)} {job.verb}"
    place = "" if source.finished else source.place(source.messages)
    if source.error is not None:
        too_large = isinstance(source.error, MessageTooLarge)
        what = f"{place}: {reason(source.error)}" if too_large else reason(source.error)
        job.output.error(f"{what}; {done} before", fields={"place": place, **facts})
        return ExitCode.NOT_DELIVERED
    if not source.finished:
        job.output.error(f"stopped before {place}; {done}", fields={"place": place, **facts})
        return stop.code
    seconds = facts["seconds"]
    rate = facts[job.verb] / max(seconds, 1e-6)
    job.output.notice(f"{done} ({size(source.bytes)}) in {seconds:.2f} s, {rate:,.0f} per second")
    job.output.event("done", {**facts, "bytes": source.bytes})
    return ExitCode.DONE


def _report_failure(job: _Job, source: Source, facts: dict[str, float], failure: BatchError, *, urgent: bool) -> None:
    error = failure.error
    place = source.place(failure.index)
    data = failure.message.data if isinstance(failure.message, Message) else None
    quoted = f" {beginning(data)}" if isinstance(data, bytes) else ""
    before = f"{counted(failure.index, job.noun)} before it {job.verb}"
    after = failure.completed - failure.index
    why, hint = reason(error), remedy(error)
    if urgent:
        why = "interrupted when it was on its way" if failure.sent else "interrupted before it was sent"
        hint = "it may have been handled" if failure.sent else None
    elif isinstance(error, ConfirmTimeout):
        hint = _SLOW_HINT
    elif isinstance(error, NotConfirmed) and not job.retry:
        hint = _RETRY_HINT
    told = {"kind": type(error).__name__, "sent": failure.sent, "place": place, "index": failure.index}
    job.output.error(
        f"{place}{quoted} is not {job.verb}: {why}; {before}" + (f", {after:,} after it" if after else ""),
        hint=hint,
        fields={**told, **facts},
    )


@asynccontextmanager
async def progress(source: Source, output: Output, noun: str) -> AsyncIterator[None]:
    """Show the progress of `source` on standard error, if that is a terminal.

    Args:
        source: The messages being sent.
        output: Decides whether animated output is allowed.
        noun: Name of its messages: "line".
    """
    if not output.live:
        yield
        return
    columns = (TextColumn("sending"), BarColumn(bar_width=24), TaskProgressColumn())
    counts = (TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    bar = Progress(*columns, *counts, console=output.console, transient=True, auto_refresh=False)
    task = bar.add_task("", total=source.total, count="")

    async def draw() -> None:
        while True:
            count = f"{source.messages:,} {noun}s, {size(source.bytes)}"
            bar.update(task, completed=source.bytes, count=count, refresh=True)
            await asyncio.sleep(_PERIOD)

    with bar:
        drawing = asyncio.create_task(draw())
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)
