"""A libchirp node in a process of its own, driven from a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.interop.raw import ANNOUNCEMENT, BOUND, RawLink, RawListener, handshake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Mode = Literal["sync", "async"]
Api = Literal["asyncio", "queue"]
OnMessage = Literal["release", "hold", "reply", "raise"]

INSTALL = """\
The tests of tests/interop talk to libchirp 1.2.1b3, and no interpreter has it. Name one that does in the environment
variable REDPOLL_LIBCHIRP_PYTHON, or build it (Debian; libchirp has been seen to work on Python 3.11):
    apt-get install gcc libuv1-dev libssl-dev libffi-dev
    python3.11 -m venv VENV && VENV/bin/pip install cffi setuptools wheel
    CFLAGS='-DFIPS_mode_set(x)=1' VENV/bin/pip install --no-build-isolation --no-binary :all: libchirp==1.2.1b3
    export REDPOLL_LIBCHIRP_PYTHON=VENV/bin/python"""


@lru_cache
def find_libchirp() -> str | None:
    """The interpreter that has libchirp, or None."""
    python = os.environ.get("REDPOLL_LIBCHIRP_PYTHON") or sys.executable
    try:
        found = subprocess.run([python, "-c", "import libchirp"], capture_output=True, check=False, timeout=BOUND)
    except OSError:
        return None
    return python if found.returncode == 0 else None


def free_port() -> int:
    """A port above 1024 that is free on both loopback addresses: libchirp wants both and cannot pick one itself."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as v4:
            port = int(v4.getsockname()[1])
            try:
                socket.create_server(("::1", port), family=socket.AF_INET6).close()
            except OSError:
                continue
            return port
    raise AssertionError("no port is free on both 127.0.0.1 and ::1")


class LibchirpError(Exception):
    """A libchirp call failed: its exception's name, libchirp's error code, its text."""

    def __init__(self, error: str, code: int | None, text: str) -> None:
        super().__init__(f"{error} {code}: {text}")
        self.error = error
        self.code = code


@dataclass(frozen=True)
class Received:
    """A message as libchirp handed it to its handler."""

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
class LibchirpNode:
    """A libchirp node in a process of its own."""

    port: int
    options: list[str]
    identity: bytes = b""
    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _calls: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _received: asyncio.Queue[Received] = field(default_factory=asyncio.Queue)
    _asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _count: int = 0

    async def start(self) -> None:
        """Start the process; return when the node listens. Once killed it may be started again."""
        python = find_libchirp()
        assert python is not None, INSTALL
        program = str(Path(__file__).with_name("libchirp_peer.py"))
        command = [python, program, "--port", str(self.port), *self.options]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26)
        ready = self._expect(0)
        self._reader = asyncio.create_task(self._read())
        async with asyncio.timeout(BOUND):
            self.identity = bytes.fromhex((await ready)["identity"])

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
                    error = LibchirpError(event["error"], event["code"], event["text"])
                    _settle(self._calls.pop(event["id"]), error)
        for call in self._calls.values():
            _settle(call, LibchirpError("ProcessEnded", None, "the process ended"))
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

    async def request(self, host: str, port: int, data: bytes) -> Received:
        async with asyncio.timeout(BOUND):
            outcome = await self.begin("request", address=host, port=port, data=data.hex())
        return Received.of(outcome["answer"])

    async def asked(self) -> None:
        """Wait, once for each request, until libchirp is ready for the answer.

        It sends a request before it is, and loses an answer that is faster: 'ChirpFuture' has no '_timer_t' yet.
        """
        async with asyncio.timeout(BOUND):
            await self._asked.acquire()

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


@contextlib.asynccontextmanager
async def libchirp_node(
    *,
    mode: Mode = "sync",
    api: Api = "asyncio",
    on_message: OnMessage = "release",
    slots: int = 0,
    timeout: float = 5.0,
    reuse_time: float = 30.0,
    max_message: int | None = None,
    host: str = "127.0.0.1",
    certificate: Path | None = None,
    dh: Path | None = None,
) -> AsyncIterator[LibchirpNode]:
    """A running libchirp node; its process is killed at the end. With a certificate it encrypts, by its own rule."""
    options = ["--mode", mode, "--api", api, "--on-message", on_message, "--slots", str(slots)]
    options += ["--timeout", str(timeout), "--reuse-time", str(reuse_time)]
    if max_message is not None:
        options += ["--max-message", str(max_message)]
    options += ["--host", host]
    if certificate is not None:
        options += ["--certificate", str(certificate), "--dh", str(dh)]
    node = LibchirpNode(free_port(), options)
    try:
        await node.start()
        yield node
    finally:
        await node.kill()


@contextlib.asynccontextmanager
async def raw_link(node: LibchirpNode, listener: RawListener, identity: bytes = b"I" * 16) -> AsyncIterator[RawLink]:
    """A connection dialled to a libchirp node, both handshakes done, as the node that listens at `listener`."""
    link = await RawLink.dial(listener.host, node.port)
    try:
        link.write(handshake(listener.port, identity) + ANNOUNCEMENT.encode())
        assert await link.read_handshake() == (node.port, node.identity)
        await link.consumed()  # or libchirp would dial for what it is told to send before it has read who this is
        yield link
    finally:
        link.close()
