"""What every test runs under: its event loops, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import socket
import stat
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.doc_pages import PLUGINS

pytest_plugins = ["pytester", "tests.flaky", "tests.rabbitmq", "tests.watchdog", *PLUGINS]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Set by nox: tasks start at once instead of in the next turn of the loop (Python 3.12).
EAGER = os.environ.get("REDPOLL_TEST_EAGER") == "1"

#: Which event loops run an asynchronous test. "core": both where the loop matters, one elsewhere; "one": one everywhere;
#: "both"; or a loop's name.
WHICH_LOOPS = os.environ.get("REDPOLL_TEST_LOOPS") or "core"

#: Whether there is a folder of open descriptors: not on Windows.
HAS_FOLDER = Path("/dev/fd").exists()

#: Collect garbage after each test instead of after each module, which says which test left it.
CHECK_EACH = os.environ.get("REDPOLL_TEST_CHECK") == "each"

# No test judges time (no deadline). In CI the examples are the same in every run; nightly draws many new ones.
settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, database=None, print_blob=True)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("REDPOLL_TEST_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

TESTS = Path(__file__).parent

#: Folders and files whose tests run on both loops: what carries bytes, and the parts of a node and of a wiring that all
#: others are built on.
ON_BOTH_LOOPS = (
    "transport",
    "node/test_batch.py",
    "node/test_cancelling.py",
    "node/test_drain.py",
    "node/test_encryption.py",
    "node/test_half_closed.py",
    "node/test_lifecycle.py",
    "node/test_iteration.py",
    "node/test_node.py",
    "node/test_pressure.py",
    "node/test_pulling.py",
    "node/test_received.py",
    "node/test_reused_buffers.py",
    "node/test_sending.py",
    "node/test_sessions.py",
    "node/test_throttling.py",
    "wiring/test_loss.py",
    "wiring/test_pipe.py",
    "wiring/test_queue.py",
    "wiring/test_wiring.py",
)

#: Folders and files whose tests wait for timers, or freeze and kill processes: on a loaded machine they are late, so two
#: workers of pytest-xdist run them, those of queues and the others, one after another, beside all other tests.
TIMED = (
    "node/test_computing.py",
    "node/test_faults.py",
    "node/test_frozen.py",
    "node/test_half_open.py",
    "node/test_connection_limits.py",
    "node/test_routers.py",
    "bus/survival",
    "nq/survival",
    "promise",
    "testing",
    "wiring/directory/test_killed.py",
    "wiring/test_loss.py",
    "wiring/test_survival.py",
)


#: Folders and files whose tests share a RabbitMQ: one worker runs them, so that there is one; and those that share another
#: one, as they are as many.
ON_RABBITMQ = ("bus/engines/amqp", "test_rabbitmq.py")
ON_ANOTHER = (
    "bus/engines/amqp/foreign",
    "bus/engines/amqp/test_bridge.py",
    "bus/engines/amqp/test_conformance.py",
    "bus/engines/amqp/test_page.py",
    "bus/engines/amqp/test_results.py",
)

#: Files that read all source files: one worker parses them.
PARSING = ("test_bounds.py", "test_exports.py", "test_layers.py", "test_security.py", "test_tests.py")

#: Seconds after which a thread or a socket that should be closed by then is taken to be left behind.
LEFT_BEHIND = 2.0

#: Names of gRPC's tasks of a served call: they wait for a thread of its own, which says that the status was sent.
GRPC = ("rpc_task", "HandleExceptions[")


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
    """Make each test marked `asyncio` once for every event loop there is."""
    return LOOPS


def loop_of(name: str) -> str:
    """Return the loop that runs a test where one is enough; the other one on another minor version of Python."""
    return sorted(LOOPS)[(zlib.crc32(name.encode()) + sys.version_info.minor) % len(LOOPS)]


@cache
def is_within(path: Path, places: Sequence[str]) -> bool:
    """Return True if a test file is one of these files, or in one of these folders, of tests/."""
    return any(path.is_relative_to(TESTS / place) for place in places)


def _is_chosen(item: Any) -> bool:
    """Return True if this loop is one of those that run this test."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.get_closest_marker("asyncio") is None:
        return True
    loop = next((name for name in callspec._idlist if name in LOOPS), None)
    if loop is None or WHICH_LOOPS == "both" or (WHICH_LOOPS == "core" and is_within(item.path, ON_BOTH_LOOPS)):
        return True
    if WHICH_LOOPS in {"core", "one"}:
        return bool(loop == loop_of(item.nodeid.replace(loop, "", 1)))
    return bool(loop.removesuffix("-eager") == WHICH_LOOPS)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage meanwhile: all that is made stays, and the collector would go through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen loops."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if _is_chosen(item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


@cache
def unit_of(name: str) -> str:
    """Return what a test file is run with, in one worker: itself, or those that are timed too, share a RabbitMQ, or parse."""
    path = TESTS.parent / name
    if is_within(path, TIMED):
        return f"timed {path.is_relative_to(TESTS / 'nq')}"
    if is_within(path, ON_RABBITMQ):
        return f"rabbitmq {is_within(path, ON_ANOTHER)}"
    return "parsing" if is_within(path, PARSING) else name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, which then makes what its tests share once; those with most tests first."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid.partition("::")[0])

        def schedule(self) -> None:
            super().schedule()
            self._give_more()

        def remove_node(self, node: Any) -> str | None:
            """Give what a worker that ended had to others, but not the test in which it ended: that would end them too."""
            units = self.assigned_work.pop(node)
            open_tests = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
            if not open_tests:
                return None
            unit, ended_in = open_tests[0]
            unit[ended_in] = True
            self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            self._give_more()
            return str(ended_in)

        def _give_more(self) -> None:
            # A worker begins a test when it knows the next one, or that there is none: one unit may be one test.
            for node in self.nodes:
                self._reschedule(node)

    return Scheduling(config, log) if config.getoption("dist") == "load" else None


#: What loops reported after the test that ran on them: its name and the context.
_late: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture(scope="module", autouse=True)
def nothing_in_the_garbage() -> Iterator[None]:
    """Fail a module whose garbage warns or holds an exception that nobody took; what was there before stays out of sight."""
    gc.collect()
    gc.freeze()
    yield
    gc.collect()  # what was dropped unclosed warns now, and a warning is an error
    late = _late[:]
    _late.clear()
    assert not late, f"exceptions that nobody took, found in the garbage: {late}"


def _open_sockets() -> dict[int, int]:
    """The inode of each socket this process has open, by descriptor."""
    found: dict[int, int] = {}
    for descriptor in map(int, os.listdir("/dev/fd") if HAS_FOLDER else ()):  # noqa: PTH208 - before and after each test
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
    if CHECK_EACH:
        gc.collect()
    left = [thread for thread in threading.enumerate() if thread not in threads]
    if left:
        gc.collect()  # what owns a thread may be in a circle
    for thread in left:
        thread.join(LEFT_BEHIND)
    stray = [thread.name for thread in left if thread.is_alive()]
    end = time.monotonic() + LEFT_BEHIND
    while (leaked := _open_sockets().items() - sockets.items()) and time.monotonic() < end:
        # The collector closes what is in a circle, and gRPC its own in a thread of its own.
        gc.collect()
        time.sleep(0.02)
    assert not leaked, f"sockets left open (descriptor, inode): {sorted(leaked)}"
    assert not stray, f"threads left running: {stray}"


@pytest_asyncio.fixture
async def quiet_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that leaves a task or a connection on the loop, or an exception with nobody to take it."""
    loop = asyncio.get_running_loop()
    sockets = _open_sockets()
    strays: list[dict[str, Any]] = []
    # In debug mode asyncio logs what takes longer than 0.1 s, among what a test expects to find in the log.
    loop.slow_callback_duration = math.inf
    loop.set_exception_handler(lambda _, context: strays.append(context))
    yield
    tasks = await _settled(_tasks)
    if CHECK_EACH:
        gc.collect()  # a failed future that nobody awaited reports when it is collected
    leaked = await _closed(lambda: [entry for entry in _open_sockets().items() - sockets.items() if _has_name(*entry)])
    name = request.node.nodeid
    loop.set_exception_handler(lambda _, context: _late.append((name, context)))
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


def _tasks() -> list[asyncio.Task[Any]]:
    current = asyncio.current_task()
    return [task for task in asyncio.all_tasks() if task is not current]


async def _settled(find: Callable[[], Sequence[asyncio.Task[Any]]]) -> Sequence[asyncio.Task[Any]]:
    """Return the tasks that there are after a few turns of the loop, enough for what is just ending, but for gRPC's own."""
    for _ in range(10):
        if not find():
            break
        await asyncio.sleep(0)
    end = time.monotonic() + LEFT_BEHIND
    while left := find():
        if time.monotonic() > end or not all(each.get_name().startswith(GRPC) for each in left):
            break
        await asyncio.sleep(0.01)
    return left


async def _closed(find: Callable[[], Sequence[object]]) -> Sequence[object]:
    """What is still open after a while: gRPC closes its own in a thread of its own."""
    end = time.monotonic() + LEFT_BEHIND
    while find() and time.monotonic() < end:
        gc.collect()
        await asyncio.sleep(0.02)
    return find()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, nothing_left_open: None) -> None:
    """Watch the loop of each asynchronous test; set up before, and so ended after, the test's own fixtures."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("quiet_loop")
