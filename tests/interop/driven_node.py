"""A node in a process of its own, driven from a test by JSON lines: libchirp_peer.py says which."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tests.interop.raw import BOUND

if TYPE_CHECKING:
    from collections.abc import Mapping


class CallError(Exception):
    """A call in the other process failed: its exception's name, its code if it has one, its text."""

    def __init__(self, error: str, code: int | None, text: str) -> None:
        super().__init__(f"{error} {code}: {text}")
        self.error = error
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Received:
    """A message as the node handed it to its handler."""

    identity: bytes
    serial: int
    header: bytes
    data: bytes
    address: str
    port: int
    remote_identity: bytes
    has_slot: bool
    number: int = -1

    @classmethod
    def of(cls, event: dict[str, Any]) -> Received:
        return cls(
            identity=bytes.fromhex(event["identity"]),
            serial=event["serial"],
            header=bytes.fromhex(event["header"]),
            data=bytes.fromhex(event["data"]),
            address=event["address"],
            port=event["port"],
            remote_identity=bytes.fromhex(event["remote_identity"]),
            has_slot=event["has_slot"],
            number=event.get("number", -1),
        )


@dataclass
class DrivenNode:
    """A node in a process of its own.

    Attributes:
        port: Where it listens.
        command: What starts it.
        environment: What its process has beside this one's.
        ready: What it said of itself when it listened.
    """

    failure: ClassVar[type[CallError]] = CallError

    port: int
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: dict[str, Any] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _calls: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _received: asyncio.Queue[Received] = field(default_factory=asyncio.Queue)
    _asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _count: int = 0

    async def start(self) -> None:
        """Start the process; return when the node listens. Once killed it may be started again."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self.command, stdin=pipe, stdout=pipe, limit=1 << 26, env={**os.environ, **self.environment}
        )
        ready = self._expect(0)
        self._reader = asyncio.create_task(self._read())
        async with asyncio.timeout(BOUND):
            self.ready = await ready

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            match event.pop("event"):
                case "ready":
                    self._calls.pop(0).set_result(event)
                case "asked":
                    self._asked.release()
                case "received":
                    self._received.put_nowait(Received.of(event))
                case "done":
                    _settle(self._calls.pop(event["id"]), event)
                case "failed":
                    error = self.failure(event["error"], event["code"], event["text"])
                    _settle(self._calls.pop(event["id"]), error)
        for call in self._calls.values():
            _settle(call, self.failure("ProcessEnded", None, "the process ended"))
        self._calls.clear()

    def _expect(self, number: int) -> asyncio.Future[dict[str, Any]]:
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        return future

    def begin(self, do: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Give a command; the future ends with its outcome."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._count += 1
        outcome = self._expect(self._count)
        line = json.dumps({"do": do, "id": self._count, **arguments}) + "\n"
        self._process.stdin.write(line.encode("ascii"))
        return outcome

    def begin_send(self, host: str, port: int, data: bytes, header: bytes = b"") -> asyncio.Future[dict[str, Any]]:
        return self.begin("send", address=host, port=port, data=data.hex(), header=header.hex())

    async def send(self, host: str, port: int, data: bytes, header: bytes = b"") -> None:
        async with asyncio.timeout(BOUND):
            await self.begin_send(host, port, data, header)

    async def release(self, message: Received) -> None:
        async with asyncio.timeout(BOUND):
            await self.begin("release", number=message.number)

    async def reply(self, message: Received, data: bytes) -> None:
        """Send a received message back with other data, as libchirp's own documentation has it."""
        async with asyncio.timeout(BOUND):
            await self.begin("resend", number=message.number, data=data.hex())

    async def received(self, within: float = BOUND) -> Received:
        async with asyncio.timeout(within):
            return await self._received.get()

    async def nothing_received(self, seconds: float) -> bool:
        """True if no message reaches the handler for so long."""
        try:
            await self.received(seconds)
        except TimeoutError:
            return True
        return False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Stop the node as a libchirp program would, and wait for its process to end."""
        async with asyncio.timeout(BOUND):
            await self.begin("stop")
        await self._end()

    async def kill(self) -> None:
        """End the process without a word."""
        if self._process is None:
            return
        if self.alive:
            self._process.kill()
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(BOUND):
            if self._reader is not None:
                await self._reader
            await self._process.wait()
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()
        self._process = None


def _settle(future: asyncio.Future[dict[str, Any]], outcome: dict[str, Any] | Exception) -> None:
    if future.done():  # a test that timed out has dropped it
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # not every test awaits every send
    else:
        future.set_result(outcome)
