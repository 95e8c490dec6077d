"""Who keeps the books of the promise: starts both ends, kills one of them, and compares what they wrote down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from redpoll.testing import Chaos, FaultProxy
from tests.ports import free_port
from tests.promise.programs import Options

#: Seconds that a program has for what takes it a fraction of one, on a machine that is busy.
PATIENCE = 60.0

#: Random faults, rough enough that a connection lives for a second; silence is found by the nodes' keepalive.
CHAOS = Chaos(interval=(0.01, 0.15), silence=0.01, fin=0.04, rst=0.08)

#: The same for sessions, which are about lost links: a connection lives for a fifth of a second.
CUTS = Chaos(interval=(0.01, 0.05), silence=0.005, fin=0.06, rst=0.1)


@dataclass(frozen=True)
class Run:
    """One run of the promise.

    Attributes:
        count: Messages.
        kills: How often the receiver is killed and started again.
        retry: Of each send.
        seed: From which all chance comes.
        resume: How long the sessions of both ends last.
    """

    count: int
    kills: int
    retry: int
    seed: int
    resume: float | None = None


@dataclass
class Books:
    """What both ends wrote: lines of process, number and word; and how many connections there were."""

    sender: list[tuple[int, int, str]]
    receiver: list[tuple[int, int, str]]
    connections: int = 0

    def outcomes(self) -> dict[int, str]:
        """How each send ended; a number that stands there twice is an error of the sender."""
        counted = Counter(number for _, number, _ in self.sender)
        assert all(count == 1 for count in counted.values()), "a send ended twice"
        return {number: word for _, number, word in self.sender}

    def numbers(self, word: str) -> set[int]:
        """The messages that a receiver noted with a word."""
        return {number for _, number, each in self.receiver if each == word}

    def check(self, run: Run) -> None:
        """Hold the books against the promise."""
        outcomes = self.outcomes()
        assert set(range(1, run.count + 1)) <= outcomes.keys(), "a send never ended"
        assert set(outcomes.values()) <= {"ok", "refused", "unsent", "unsure", "cancelled"}
        of = {word: {number for number, each in outcomes.items() if each == word} for word in set(outcomes.values())}
        begun, ended, refused = self.numbers("begun"), self.numbers("ended"), self.numbers("refused")
        assert of["ok"] <= ended, "a send succeeded whose message was not handled to the end"
        assert of.get("refused", set()) <= refused, "a send was refused that no receiver refused"
        assert not of.get("unsent", set()) & begun, "a send was said not to have been sent, and was begun"
        times = Counter((pid, number) for pid, number, word in self.receiver if word == "begun")
        twice = [key for key, count in times.items() if count > 1]
        assert not twice, f"messages ran twice at one receiver: {twice}"
        if not run.retry:
            anywhere = Counter(number for _, number, word in self.receiver if word == "begun")
            assert not [number for number, count in anywhere.items() if count > 1], "it ran twice without a retry"

    def check_sessions(self, run: Run) -> None:
        """Hold the books against what a session promises, where the receiver lived all the time."""
        failed = {number: word for number, word in self.outcomes().items() if word not in {"ok", "refused"}}
        assert not failed, "a send failed in a session that went on"
        begun = [number for _, number, word in self.receiver if word == "begun" and number <= run.count]
        assert begun == sorted(begun), "handlers did not begin in the order of the sends"
        assert begun == list(range(1, run.count + 1)), "a message was lost, or handled twice"


def read_log(path: Path) -> list[tuple[int, int, str]]:
    """The lines of a log."""
    lines = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
    return [(int(pid), int(number), word) for pid, number, word in lines]


async def keep_books(run: Run, folder: Path) -> Books:
    """Run it: send through a proxy that does its worst, kill the receiver now and then, and return what was written."""
    chance = random.Random(run.seed)
    sent, handled = folder / "sent", folder / "handled"
    port = free_port()
    pause = 0.2 if run.count < 10_000 else 0.05
    options = Options(str(handled), port=port, seed=run.seed, count=run.count, retry=run.retry, pause=pause)
    options = replace(options, resume=run.resume, hurry=run.resume is None)
    chaos = CHAOS if run.resume is None else CUTS
    async with contextlib.AsyncExitStack() as stack:
        receiver = await _started(stack, "receiver", options, "ready")
        proxy = await stack.enter_async_context(FaultProxy(f"127.0.0.1:{port}", seed=run.seed, chaos=chaos))
        sender = await _started(stack, "sender", replace(options, log=str(sent), addresses=(str(proxy.address),)))
        moments = sorted(chance.randrange(1, run.count) for _ in range(run.kills))
        for number, moment in enumerate(moments):
            await _written(sent, moment, sender)
            receiver.send_signal(signal.SIGKILL)
            await receiver.wait()
            receiver = await _started(stack, "receiver", replace(options, seed=run.seed + number + 1), "ready")
        await _line(sender, run.count)
        proxy.calm()
        print(proxy.stats())
        await _finished(sender)
        await _stopped(receiver)
    return Books(read_log(sent), read_log(handled), proxy.stats().connections)


async def restart_in_turn(count: int, workers: int, folder: Path) -> Books:
    """Send to a pool of receivers while each of them is stopped and started again, and return what was written."""
    sent, handled = folder / "sent", folder / "handled"
    ports = [free_port() for _ in range(workers)]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    options = Options(str(handled), count=count, timeout=20.0, hurry=False, pause=0.05)
    async with contextlib.AsyncExitStack() as stack:
        pool = [await _started(stack, "receiver", replace(options, port=port), "ready") for port in ports]
        sender = await _started(stack, "sender", replace(options, log=str(sent), addresses=addresses))
        for number, port in enumerate(ports):
            await _written(sent, count * (number + 1) // (workers + 2), sender)
            await _stopped(pool[number])
            pool[number] = await _started(stack, "receiver", replace(options, port=port), "ready")
        await _line(sender, count)
        await _finished(sender)
        for receiver in pool:
            await _stopped(receiver)
    return Books(read_log(sent), read_log(handled))


async def _finished(sender: asyncio.subprocess.Process) -> None:
    """Let a sender send its last messages; nothing may be left of any."""
    assert sender.stdin is not None
    sender.stdin.write(b"finish\n")
    left = json.loads(await _line(sender))
    assert left == {"in_flight": 0, "queued": 0}, f"something is left at the sender: {left}"
    assert await asyncio.wait_for(sender.wait(), PATIENCE) == 0


async def _stopped(receiver: asyncio.subprocess.Process) -> None:
    """Ask a receiver to stop, as a service manager does; it ends what it began, and no slot is left in use."""
    receiver.send_signal(signal.SIGTERM)
    assert json.loads(await _line(receiver)) == {"slots_used": 0}
    assert await asyncio.wait_for(receiver.wait(), PATIENCE) == 0


async def _started(
    stack: contextlib.AsyncExitStack, role: str, options: Options, ready: str = ""
) -> asyncio.subprocess.Process:
    process = await stack.enter_async_context(_program(role, options))
    if ready:
        assert await _line(process) == ready
    return process


@contextlib.asynccontextmanager
async def _program(role: str, options: Options) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.promise.programs",
        role,
        options.encode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(_absolute, sys.path)))},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # its pipes would warn of being open


def _absolute(entry: str) -> str:
    return str(Path(entry).resolve()) if entry else ""


async def _line(process: asyncio.subprocess.Process, count: int = 0) -> str:
    """The next line that a program prints; `count` messages may take their time before it."""
    stdout = process.stdout
    assert stdout is not None
    line: bytes = await asyncio.wait_for(stdout.readline(), PATIENCE + count / 100)
    assert line, "the program ended; what it said is above"
    return line.decode().strip()


async def _written(path: Path, lines: int, writer: asyncio.subprocess.Process) -> None:
    """Wait until so many sends have ended."""
    async with asyncio.timeout(PATIENCE + lines / 100):
        while not path.exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.01)
        with path.open("rb") as log:
            count = 0
            while (count := count + log.read().count(b"\n")) < lines:
                assert writer.returncode is None
                await asyncio.sleep(0.01)
