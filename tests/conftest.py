"""What every test runs under: both event loops, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.doc_pages import PLUGINS

pytest_plugins = ["pytester", "tests.watchdog", *PLUGINS]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Set by nox in a session of its own: tasks start at once instead of in the next turn of the loop (Python 3.12).
EAGER = os.environ.get("REDPOLL_TEST_EAGER") == "1"

# No test judges time (no deadline). On CI the examples are the same in every run; nightly draws many new ones.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("REDPOLL_TEST_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def _loop_factories() -> dict[str, LoopFactory]:
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.SelectorEventLoop}
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the marker in pyproject.toml says which
        return factories
    factories["uvloop"] = uvloop.new_event_loop
    return factories


def _eager_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    # As asyncio.eager_task_factory, which before Python 3.13.3 does not take all that uvloop passes.
    return asyncio.Task(coro, loop=loop, **{**options, "eager_start": True})


def _eager(factory: LoopFactory) -> LoopFactory:
    def new_loop() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.set_task_factory(_eager_task)
        return loop

    return new_loop


LOOPS = _loop_factories()
if EAGER:
    LOOPS = {f"{name}-eager": _eager(factory) for name, factory in LOOPS.items()}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Run each test marked `asyncio` once on every event loop there is."""
    return LOOPS


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """Put all that is there before a module's tests out of the garbage collector's sight: it runs after each test."""
    gc.collect()
    gc.freeze()


def _open_sockets() -> dict[int, int]:
    """The inode of each socket this process has open, by descriptor."""
    found: dict[int, int] = {}
    folder = Path("/dev/fd")
    for entry in folder.iterdir() if folder.exists() else ():
        descriptor = int(entry.name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # the descriptor of the listing itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[descriptor] = status.st_ino
    return found


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Fail a test after which a socket or a thread is there that was not there before."""
    sockets = _open_sockets()
    threads = set(threading.enumerate())
    yield
    gc.collect()  # what was dropped unclosed warns now, and a warning is an error
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(1.0)
    stray = [thread.name for thread in left if thread.is_alive()]
    end = time.monotonic() + 2.0
    while (leaked := _open_sockets().items() - sockets.items()) and time.monotonic() < end:
        # gRPC closes its own in a thread of its own.
        gc.collect()
        time.sleep(0.02)
    assert not leaked, f"sockets left open (descriptor, inode): {sorted(leaked)}"
    assert not stray, f"threads left running: {stray}"


@pytest_asyncio.fixture
async def quiet_loop() -> AsyncIterator[None]:
    """Fail a test that leaves a task or a connection on the loop, or an exception with nobody to take it."""
    loop = asyncio.get_running_loop()
    sockets = _open_sockets()
    strays: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: strays.append(context))
    yield
    tasks = await _settled(_tasks)
    gc.collect()  # a failed future that nobody awaited reports when it is collected
    leaked = await _closed(lambda: [entry for entry in _open_sockets().items() - sockets.items() if _has_name(*entry)])
    loop.set_exception_handler(None)
    assert not tasks, f"tasks left running: {tasks}"
    assert not strays, f"exceptions that nobody took: {strays}"
    assert not leaked, f"sockets left open on the loop (descriptor, inode): {leaked}"


def _has_name(descriptor: int, inode: int) -> bool:
    """Whether a socket has an address; the pair by which uvloop wakes itself, made anew in every run, has none."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family != socket.AF_UNIX or copy.getsockname():
            return True
        try:
            return bool(copy.getpeername())
        except OSError:  # not connected
            return True


def _tasks() -> list[object]:
    current = asyncio.current_task()
    return [task for task in asyncio.all_tasks() if task is not current]


async def _settled(find: Callable[[], Sequence[object]]) -> Sequence[object]:
    """What is still found after a few turns of the loop, enough for what is just ending."""
    for _ in range(10):
        if not find():
            break
        await asyncio.sleep(0)
    return find()


async def _closed(find: Callable[[], Sequence[object]]) -> Sequence[object]:
    """What is still open after two seconds at most: gRPC closes its own in a thread of its own."""
    end = time.monotonic() + 2.0
    while find() and time.monotonic() < end:
        gc.collect()
        await asyncio.sleep(0.02)
    return find()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, nothing_left_open: None) -> None:
    """Watch the loop of each asynchronous test; set up before, and so ended after, the test's own fixtures."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("quiet_loop")
