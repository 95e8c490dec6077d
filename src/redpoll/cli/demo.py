"""`redpoll demo`: send a file, requests and tasks between processes, kill a worker, and print the times."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import redpoll
from redpoll.address import Address
from redpoll.errors import BatchError, UsageError
from redpoll.message import Message
from redpoll.node import Node

from . import runtime
from .child import Program
from .codes import ExitCode
from .demo_hub import PATIENCE, Account, lose_a_worker
from .measure import Measurement, measure
from .options import JsonOption, QuietOption
from .output import Output, counted, printable, reason
from .report import table, title

__all__ = ["Delivery", "check_delivery", "demo"]

#: Number of sends and requests that are open at a time in the steps that are not sequential.
_AT_ONCE = 64
#: Tasks of the last step, at least.
_FEWEST = 60


def demo(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="PATH", help="Send the lines of this file; by default, a source file of redpoll."
        ),
    ] = None,
    messages: Annotated[
        int,
        typer.Option("--messages", "-n", min=1, max=1_000_000, help="Number of messages in the larger steps."),
    ] = 20_000,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Send the lines of a file to a second process, then requests, then tasks over a hub, and print the time taken.

    Checks that every line arrived once and in order, and that every task was done although one of its two workers is
    killed meanwhile. The exit code is 1 if a message or task was lost.
    """
    output = Output(json=json, quiet=quiet)
    runtime.run(lambda stop: stop.until(_demonstrate(file or _largest_source(), messages, output)), output)


async def _demonstrate(file: Path, messages: int, output: Output) -> ExitCode:
    lines = _read_lines(file)
    repeats = -(-messages // len(lines))
    with tempfile.TemporaryDirectory(prefix="redpoll-demo-") as folder:
        received = Path(folder, "received")
        async with AsyncExitStack() as stack:
            with output.status("starting a second and a third process"):
                listener, there = await Program.listening(stack, "listen", "127.0.0.1:0", "--output", str(received))
                echo, answering = await Program.listening(stack, "echo", "127.0.0.1:0")
            node: Node[bytes] = await stack.enter_async_context(Node(listen=False, dial="once", timeout=PATIENCE))
            with output.status(f"sending {counted(len(lines) * repeats, 'line')}"):
                steps = [await _send_lines(node, there, lines * repeats)]
                await listener.finish()
            with output.status("sending and asking"):
                steps += await _measure_echo(node, answering, messages)
                await echo.finish()
        delivery = check_delivery(lines, repeats, received)
        with output.status("doing tasks over a hub, and killing one of two workers"):
            step, account = await lose_a_worker(str(Path(folder, "hub")), max(_FEWEST, messages // 100))
    return _report(file, repeats, delivery, [*steps, step], account, output)


async def _send_lines(node: Node[bytes], listener: dict[str, Any], lines: list[bytes]) -> Measurement:
    address = Address.parse(listener["address"])
    started = time.perf_counter()
    try:
        confirmed = await node.send_many(Message(line, address) for line in lines)
    except BatchError as error:
        confirmed = error.completed
    elapsed = time.perf_counter() - started
    return Measurement("lines in order", confirmed, elapsed, (), listener["slots"], len(lines) - confirmed)


async def _measure_echo(node: Node[bytes], echo: dict[str, Any], messages: int) -> list[Measurement]:
    address = Address.parse(echo["address"])
    data = b"x" * 100

    async def send(_: int) -> bool:
        await node.send(Message(data, address))
        return True

    async def ask(number: int) -> bool:
        question = number.to_bytes(100, "big")
        return bytes((await node.request(Message(question, address))).data) == question

    few = max(1, messages // 10)
    slots = echo["slots"]
    return [
        await measure("send, 1 open", send, messages=few, at_once=1, slots=slots),
        await measure(f"send, {_AT_ONCE} open", send, messages=messages, at_once=_AT_ONCE, slots=slots),
        await measure("request, 1 open", ask, messages=few, at_once=1, slots=slots),
        await measure(f"request, {_AT_ONCE} open", ask, messages=messages, at_once=_AT_ONCE, slots=slots),
    ]


def _report(
    file: Path, repeats: int, delivery: Delivery, steps: list[Measurement], account: Account, output: Output
) -> ExitCode:
    whole = delivery.exact and account.exact and not any(step.errors for step in steps)
    times = f", {repeats:,} times" if repeats > 1 else ""
    if output.json:
        facts = {"file": str(file), "repeats": repeats, "lines": asdict(delivery), "exact": delivery.exact}
        facts["tasks"] = {**asdict(account), "exact": account.exact}
        output.event("demo", {**facts, "steps": [step.record() for step in steps]})
    else:
        console = Console(highlight=False)
        console.print(table(title("processes on 127.0.0.1"), steps, console))
        if delivery.exact:
            name = printable(file.name)
            lines = counted(delivery.sent // repeats, "line")
            console.print(f"\nThe {lines} of {name}{times}: each arrived once and in order.", markup=False)
        if account.exact:
            again = f"{account.begun_again} of its tasks began again, and each of {account.submitted} has one outcome"
            console.print(f"One of two workers was killed: {again}.", markup=False)
    if not delivery.exact:
        output.error(
            f"line {delivery.first_difference:,} of {delivery.sent:,} differs from the received one; "
            f"{delivery.received:,} arrived"
        )
    elif not whole:
        output.error(
            f"{counted(sum(step.errors for step in steps), 'message')} failed, and of {account.submitted} tasks "
            f"{account.outcomes} have an outcome"
        )
    return ExitCode.DONE if whole else ExitCode.NOT_DELIVERED


def _read_lines(file: Path) -> list[bytes]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {reason(error)}") from error
    lines = data.removesuffix(b"\n").split(b"\n")
    if not data:
        raise UsageError(f"cannot send the lines of {file}: it is empty")
    return lines


def _largest_source() -> Path:
    # This file exists on every machine.
    return max(Path(redpoll.__file__).parent.rglob("*.py"), key=lambda path: path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of sent lines.

    Attributes:
        sent: Number of sent lines.
        received: Number of lines that the receiver wrote.
        first_difference: Number, from 1, of the first missing, different or extra line; None if there is none.
    """

    sent: int
    received: int
    first_difference: int | None

    @property
    def exact(self) -> bool:
        """True if every line arrived once and in order."""
        return self.first_difference is None


def check_delivery(lines: Sequence[bytes], repeats: int, written: Path) -> Delivery:
    """Compare the lines of a file with the sent ones.

    Args:
        lines: The sent lines, without newlines.
        repeats: How many times they were sent.
        written: The file that the receiver wrote.

    Raises:
        OSError: It cannot be read.
    """
    sent = len(lines) * repeats
    received = 0
    difference: int | None = None
    with written.open("rb") as file:
        for number, line in enumerate(file):
            received += 1
            if difference is None and (number >= sent or line != lines[number % len(lines)] + b"\n"):
                difference = number + 1
    if difference is None and received < sent:
        difference = received + 1
    return Delivery(sent, received, difference)
