"""The check that every test runs under catches what a test leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LOOPS, ON_ANOTHER, ON_BOTH_LOOPS, ON_RABBITMQ, TESTS, TIMED, is_within, loop_of
from tests.source_tree import ROOT

LEAKY = """
import asyncio, socket, threading, time
import pytest
import tests.conftest

tests.conftest.LEFT_BEHIND = 0.1
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

@pytest.mark.asyncio
async def test_future_in_a_circle():
    future = asyncio.get_running_loop().create_future()
    future.set_exception(LookupError("nobody took this"))
    circle = [future]
    circle.append(circle)
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


pytestmark = pytest.mark.timeout(180)  # one of them waits for a process in which all of these run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says about tests that leave things behind."""
    path: Path = tmp_path_factory.mktemp("leaky") / "test_leaky.py"
    path.write_text(LEAKY)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(path.parent), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *config, "-vv", str(path)]
    env = os.environ | {"REDPOLL_TEST_LOOPS": "both"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150).stdout


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


def test_the_garbage_of_a_module_names_the_test(report: str) -> None:
    """What a module's garbage reports is found at its end, and names the test that it is of."""
    found = next(line for line in report.splitlines() if line.startswith("E") and "in the garbage: [" in line)
    assert "::test_future_in_a_circle[asyncio]" in found
    assert "::test_future_in_a_circle[uvloop]" in found


def test_clean_passes(report: str) -> None:
    """A test that tidies up passes, on both loops."""
    lines = [line for line in report.splitlines() if "::test_clean" in line]
    assert len(lines) == 2
    assert all("PASSED" in line for line in lines)


def test_one_loop_is_enough() -> None:
    """Where one loop is enough a test's name chooses it; both are chosen, and each part of the core runs on both."""
    names = [f"tests/blocking/test_pool_node.py::test_{number}" for number in range(64)]
    assert {loop_of(name) for name in names} == set(LOOPS)
    assert [loop_of(name) for name in names] == [loop_of(name) for name in names]
    assert all((TESTS / place).exists() for place in (*ON_ANOTHER, *ON_BOTH_LOOPS, *ON_RABBITMQ, *TIMED))
    assert is_within(TESTS / "transport" / "test_dial.py", ON_BOTH_LOOPS)
    assert not is_within(TESTS / "node" / "test_dial.py", ON_BOTH_LOOPS)


HANGS = """
import threading
import pytest

@pytest.mark.timeout(2)
def test_hangs():
    threading.Event().wait()

@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    pass
"""


def test_one_that_hangs_does_not_keep_the_others(tmp_path: Path) -> None:
    """A test that hangs ends its worker; it fails, is not begun again, and all others are run."""
    path = tmp_path / "test_hangs.py"
    path.write_text(HANGS)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *config, "-n", "2", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 3 passed" in done.stdout
