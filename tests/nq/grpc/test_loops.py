"""Several event loops in one process, one after another and at the same time; and processes that are forked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from redpoll import Message, Received
from tests.cli.support import environment
from tests.conftest import LOOPS
from tests.nq.grpc.support import echo, make

FACTORIES = pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)

NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def talk(times: int) -> None:
    """Two nodes on this loop."""
    async with make(echo) as there, make(listen=False) as node:
        for number in range(times):
            body = bytes(number * 1000)
            assert (await node.request(Message(body, there.address))).data == body


def run(factory: NewLoop, times: int, strays: list[object]) -> None:
    """Run a loop to its end; what it has nobody to tell of is a stray."""
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: strays.append(context))
        runner.run(talk(times))


@FACTORIES
def test_one_after_another(factory: NewLoop) -> None:
    """Each loop has what it needs, and leaves nothing for the next, wherever it runs."""
    strays: list[object] = []
    for _ in range(3):
        run(factory, 3, strays)
        thread = threading.Thread(target=run, args=(factory, 3, strays))
        thread.start()
        thread.join()
    assert not strays


@FACTORIES
def test_at_the_same_time(factory: NewLoop) -> None:
    """Loops in several threads come and go beside one another, and each gets what is its own."""
    strays: list[object] = []
    failed: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(3):
                run(factory, 20, strays)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test tells it
            failed.append(error)

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert not strays


@FACTORIES
def test_from_one_loop_to_another(factory: NewLoop) -> None:
    """Nodes of two loops in two threads talk to each other."""
    address: asyncio.Future[object] = asyncio.Future(loop=asyncio.new_event_loop())
    ready = threading.Event()
    strays: list[object] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))

        def handler(message: Received[bytes]) -> bytes:
            return message.data[::-1]

        async with make(handler) as there:
            address.set_result(there.address)
            ready.set()
            await ended.wait()

    def there() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: strays.append(context))
            runner.run(serve())

    async def ask() -> None:
        async with make(listen=False) as node:
            for number in range(200):
                body = b"%d" % number
                assert (await node.request(Message(body, address.result()))).data == body[::-1]  # type: ignore[arg-type]

    thread = threading.Thread(target=there)
    thread.start()
    assert ready.wait(10)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: strays.append(context))
        runner.run(ask())
    stop[0]()
    thread.join()
    address.get_loop().close()
    assert not strays


PROGRAM = """
import asyncio, gc, os, sys, threading
from redpoll import Message, UsageError, nq
from redpoll.nq.grpc.carrier import GrpcCarrier

GrpcCarrier(nq.CommunicatorOptions())  # before the tests' own modules import grpc
from tests.nq.grpc.support import echo, make

ready = threading.Event()

async def main():
    global loop, end
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    async with make(echo) as there, make(listen=False) as node:
        await node.request(Message(b"x", there.address))
        ready.set()
        await end.wait()
        await node.request(Message(b"x", there.address))

def refused():
    try:
        GrpcCarrier(nq.CommunicatorOptions())
    except UsageError as error:
        return "spawn" not in str(error)
    return True

thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
thread.start()
ready.wait()
child = os.fork()
if child == 0:
    {child}
status = os.waitpid(child, 0)[1]
loop.call_soon_threadsafe(end.set)
thread.join()
print("status", status)
"""


@pytest.mark.parametrize("child", ["os._exit(0)", "gc.collect(); sys.exit(0)", "sys.exit(refused())"])
def test_a_child_of_a_process_that_uses_it(child: str) -> None:
    """A process forked beside links ends as any other, and the links go on; it is told if it would use gRPC."""
    program = PROGRAM.format(child=child)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment(), timeout=30, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "status 0\n"


@pytest.mark.asyncio
async def test_the_end_of_a_loop_does_not_cancel_a_server() -> None:
    """The task of a server is not among those that `asyncio.run` cancels: it owns the memory to which gRPC writes."""
    async with make(echo) as there, make(listen=False) as node:
        await node.request(Message(b"x", there.address))
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("AioServer.")]


FORGOTTEN = """
import asyncio, gc
from redpoll import nq

async def main(moment):
    ends = [nq.aio.new("grpc", "server", nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0)))]
    if moment != "opening":
        await ends[0].start()
        ends.append(nq.aio.new("grpc", "client", nq.CommunicatorOptions(netloc=ends[0].netloc)))
        await ends[1].start()
    if moment in {"at work", "closing"}:
        await ends[1].ready(10)
        put = ends[1].put(bytes(3_000_000))
    task = None
    if moment == "opening":
        task = asyncio.create_task(ends[0].start())
    elif moment == "closing":
        task = asyncio.create_task(ends[0].close(0))
    for _ in range(TURNS):
        await asyncio.sleep(0)

for moment in ("opening", "dialling", "at work", "closing"):
    asyncio.run(main(moment))
    gc.collect()
print("done")
"""


@pytest.mark.parametrize("turns", [1, 3, 10, 30])
def test_a_loop_that_ends_before_what_it_runs(turns: int) -> None:
    """Whatever was not closed when a loop ended, nobody waits for it: neither who drops it nor the end of the program."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORGOTTEN.replace("TURNS", str(turns))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
