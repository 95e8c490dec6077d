"""The check that every test runs under catches what a test leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

LEAKY = """
import asyncio, socket, threading, time
import pytest

kept = []

@pytest.mark.asyncio
async def test_clean():
    reader, writer = await asyncio.open_connection(sock=socket.create_connection(LISTENER.getsockname()))
    writer.close()
    await writer.wait_closed()

LISTENER = socket.create_server(("127.0.0.1", 0))

@pytest.mark.asyncio
async def test_task():
    kept.append(asyncio.create_task(asyncio.Event().wait()))

@pytest.mark.asyncio
async def test_future():
    asyncio.get_running_loop().create_future().set_exception(LookupError("nobody took this"))

@pytest.mark.asyncio
async def test_callback():
    asyncio.get_running_loop().call_soon(lambda: {}["nothing"])

@pytest.mark.asyncio
async def test_connection():
    loop = asyncio.get_running_loop()
    kept.append(await loop.create_connection(asyncio.Protocol, *LISTENER.getsockname()))

@pytest.mark.asyncio
async def test_coroutine():
    asyncio.sleep(0)

def test_socket():
    kept.append(socket.socket())

def test_dropped_socket():
    socket.socket()

def test_thread():
    stop = threading.Event()
    threading.Thread(target=stop.wait, args=(3,), name="left running").start()
"""

CAUGHT = {
    "test_task": "tasks left running",
    "test_future": "exceptions that nobody took",
    "test_callback": "exceptions that nobody took",
    "test_connection": "sockets left open on the loop",
    "test_coroutine": "was never awaited",
    "test_socket": "sockets left open",
    "test_dropped_socket": "unclosed",
    "test_thread": "threads left running: ['left running']",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says about tests that leave things behind."""
    path: Path = tmp_path_factory.mktemp("leaky") / "test_leaky.py"
    path.write_text(LEAKY)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(path.parent), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *config, "-vv", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50).stdout


@pytest.mark.parametrize("name", CAUGHT)
def test_caught(report: str, name: str) -> None:
    """A test that leaves something behind does not pass, and the reason is told."""
    loops = ("[asyncio", "[uvloop") if f"::{name}[" in report else ("",)
    for loop in loops:
        bad = [
            line for line in report.splitlines() if f"::{name}{loop}" in line and ("ERROR" in line or "FAILED" in line)
        ]
        assert bad, report
    assert CAUGHT[name] in report


def test_clean_passes(report: str) -> None:
    """A test that tidies up passes, on both loops."""
    lines = [line for line in report.splitlines() if "::test_clean" in line]
    assert len(lines) == 2
    assert all("PASSED" in line for line in lines)
