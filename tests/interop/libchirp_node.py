"""A libchirp node in a process of its own, driven from a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.interop.driven_node import CallError, DrivenNode, Received
from tests.interop.raw import ANNOUNCEMENT, BOUND, RawLink, RawListener, handshake
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

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


class LibchirpError(CallError):
    """A libchirp call failed: its exception's name, libchirp's error code, its text."""


class LibchirpNode(DrivenNode):
    """A libchirp node in a process of its own."""

    failure = LibchirpError

    @property
    def identity(self) -> bytes:
        """Its node identity."""
        return bytes.fromhex(self.ready["identity"])

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
    port: int | None = None,
    within: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[LibchirpNode]:
    """A running libchirp node; its process is killed at the end. With a certificate it encrypts, by its own rule.

    `within` is the command that runs its command somewhere else, where any port is free; `environment` is added to what
    its process has.
    """
    python = find_libchirp()
    assert python is not None, INSTALL
    program = str(Path(__file__).with_name("libchirp_peer.py"))
    # libchirp listens on both families, and cannot choose a port itself.
    chosen = port or free_port()
    options = ["--mode", mode, "--api", api, "--on-message", on_message, "--slots", str(slots)]
    options += ["--timeout", str(timeout), "--reuse-time", str(reuse_time)]
    if max_message is not None:
        options += ["--max-message", str(max_message)]
    options += ["--host", host]
    if certificate is not None:
        options += ["--certificate", str(certificate), "--dh", str(dh)]
    node = LibchirpNode(chosen, [*within, python, program, "--port", str(chosen), *options], environment or {})
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
