"""The one loop thread of a process: shared, ended with its last node, at exit and after a fork."""

from __future__ import annotations

import re
import threading

import pytest

from redpoll import Abandoned, ConfigError, Message
from redpoll.blocking import QueueNode
from redpoll.blocking import loop_thread as module
from redpoll.runner import loop_factory
from tests.blocking.support import PATIENCE, interrupting, make, run_program, to, until
from tests.ports import free_port


def loop_threads() -> list[threading.Thread]:
    """Those that run."""
    return [thread for thread in threading.enumerate() if thread.name == "redpoll loop"]


def test_nodes_share_one_thread() -> None:
    """However many nodes run, one thread serves them; it ends with the last and is made anew for the next."""
    for _ in range(2):
        assert not loop_threads()
        with make():
            with make(), make():
                (thread,) = loop_threads()
            assert loop_threads() == [thread]
        assert not loop_threads()


def test_a_node_that_cannot_start_leaves_no_thread() -> None:
    """When a start fails its thread ends, and the node may be tried again."""
    with make() as node:
        other: QueueNode[bytes] = QueueNode(port=node.address.port)
        with pytest.raises(ConfigError):
            other.start()
        assert len(loop_threads()) == 1
    assert not loop_threads()
    with other:
        assert len(loop_threads()) == 1


STARTS = """
import queue
from redpoll import Message, nq
from redpoll.blocking import QueueNode
makers = [
    lambda: QueueNode(port=0).start(),
    lambda: nq.new("tcp", "server", nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))),
]
told = queue.SimpleQueue()
def start(_):
    for make in makers:
        try:
            told.put(make())
        except Exception as error:
            told.put(error.args[0])
with QueueNode(port=0) as node, QueueNode() as sender:
    for number in range(2):
        sender.send(Message(b"", node.address)).add_done_callback(start)
        with node.take(timeout=10):
            pass
        for _ in makers:
            print(told.get(timeout=10))
"""


def test_a_callback_starts_nothing() -> None:
    """What waits for the loop to start something is refused on the loop's own thread, which goes on."""
    done = run_program(STARTS)
    refused = "this would block the thread of the event loop, and with it every node\n"
    assert done.stdout == refused * 4, done.stderr


def test_a_loop_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while the loop is made comes out of the start."""

    def none() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "loop_factory", none)
    with pytest.raises(OSError, match="Too many"), make():
        pass
    monkeypatch.undo()
    with make() as node:
        assert node.listening


@pytest.mark.parametrize("moment", ["while the thread begins", "while its loop begins"])
def test_ctrl_c_in_a_start_leaves_no_thread(moment: str) -> None:
    """An interrupted start ends the loop that it began."""
    begun, gate = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        gate.wait(PATIENCE)

    class Slow(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "redpoll loop":
                gate.wait(PATIENCE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loop_factory", slow)
        if moment == "while the thread begins":
            patch.setattr(threading, "Thread", Slow)
        with interrupting(begun.is_set), pytest.raises(KeyboardInterrupt):
            make().start()
    gate.set()
    until(lambda: not loop_threads(), "the loop to end")
    with make() as node:
        assert node.listening


def test_uvloop_where_it_is_installed() -> None:
    """The loop is the faster one that is there."""
    factory = loop_factory()
    faster = "asyncio" if factory is None else factory.__module__.partition(".")[0]
    with make() as node:
        assert type(node._handover().loop).__module__.partition(".")[0] == faster


ENDED = """
import sys, threading
from redpoll import Closed, Message
from redpoll.blocking import QueueNode
with QueueNode(port=0) as node:
    address = node.address
    (thread,) = [each for each in threading.enumerate() if each.name == "redpoll loop"]
    node._handover().post(sys.exit)
    thread.join()
    for use in (lambda: node.send(Message(b"x", address)), lambda: node.check(address), node.get):
        try:
            use()
        except Closed:
            print("closed")
with QueueNode(port=0) as node:
    print(node.check(node.address))
"""


def test_a_loop_that_a_callback_ended_keeps_nobody() -> None:
    """Where one exits, what comes later is told that it is closed, a stop returns, and the next node has another loop."""
    done = run_program(ENDED)
    assert done.stdout == "closed\nclosed\nclosed\nTrue\n", done.stderr
    assert "a callback ended the event loop, and with it all nodes for threads" in done.stderr


WAITING = """
import socket, sys, threading
from redpoll import Message, RedpollError
from redpoll.blocking import QueueNode
silent = socket.create_server(("127.0.0.1", 0))
node, sender = QueueNode(port=0), QueueNode(timeout=None)
for each in (node, sender):
    each.start()
sends = [sender.send(Message(b"x", f"127.0.0.1:{silent.getsockname()[1]}")) for _ in range(3)]
told = []
def wait(function, *args):
    def work():
        try:
            function(*args)
        except RedpollError as error:
            told.append(type(error).__name__)
    thread = threading.Thread(target=work)
    thread.start()
    return thread
def take():
    with node.take(None):
        pass
def iterate():
    for message in node:
        pass
threads = [
    wait(node.get), wait(take), wait(iterate), wait(node.serve_forever), wait(node.ready, sends[0].message.address),
    *[wait(send.result) for send in sends],
]
feed = node._node.feed
while len(feed._waiting) < 3:
    pass
for send in sends:  # each of them ends the loop once more
    send.add_done_callback(lambda _: sys.exit(3))
node._handover().post(sys.exit)
for thread in threads:
    thread.join(10)
    print(thread.is_alive(), end=" ")
print(sorted(told))
for each in (node, sender):
    each.stop()
"""


def test_whatever_waits_ends_with_the_loop() -> None:
    """Where a callback exits, each thread that waits for a message, a future or a node is told, however it waits."""
    done = run_program(WAITING)
    assert done.stdout == "False " * 8 + "['Closed', 'Closed', 'Closed', 'NotSent', 'NotSent', 'NotSent']\n", (
        done.stderr
    )


BLOCKED = """
import threading, time
from redpoll import Message
from redpoll.blocking import QueueNode
node = QueueNode(port=0)
node.start()
blocked = threading.Event()
def block(*_):
    blocked.set()
    time.sleep(60)
HOW
blocked.wait()
"""


@pytest.mark.parametrize(
    "how",
    [
        "node.events.peer_connected = block; node.send(Message(b'x', node.address))",
        "node.send(Message(b'x', node.address), timeout=0.5).add_done_callback(block)",
    ],
)
def test_a_callback_that_blocks_does_not_keep_the_program(how: str) -> None:
    """A program ends though a hook, or the callback of a future, does not return."""
    done = run_program(BLOCKED.replace("HOW", how), "-W", "always")
    assert done.returncode == 0
    assert "was not stopped before the program ended" in done.stderr


UNSTOPPED = """
from redpoll import Message
from redpoll.blocking import QueueNode, PoolNode
node = QueueNode(port=0)
node.start()
pool = PoolNode(lambda message: None, port=0)
pool.start()
node.send(Message(b"x", pool.address)).result()
print("end")
"""


def test_a_program_that_stops_no_node_ends() -> None:
    """It ends without hanging, and warns of each node."""
    done = run_program(UNSTOPPED, "-W", "always")
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert sorted(re.findall(r"ResourceWarning: <(\w+) \w+ (\w+)", done.stderr)) == [
        ("PoolNode", "running"),
        ("QueueNode", "running"),
    ]
    assert "was not stopped before the program ended" in done.stderr


def test_a_program_that_waits_with_an_exception_ends() -> None:
    """An exception of the main thread outside of any block does not hang either."""
    done = run_program(UNSTOPPED + "raise SystemExit(3)")
    assert done.returncode == 3
    assert not done.stderr


DAEMONS = """
import socket, threading
from redpoll.blocking import QueueNode
silent = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{silent.getsockname()[1]}"
node, holding = QueueNode(port=PORT), threading.Event()
node.start()
def hold():
    node.get()
    holding.set()
    threading.Event().wait()
def take():
    with node.take():
        pass
def start(work):
    threading.Thread(target=work, daemon=True).start()
start(hold)
holding.wait()
for work in (node.get, take, node.serve_forever, lambda: node.ready(address)):
    start(work)
while len(node._node.feed._waiting) < 2:
    pass
"""


def test_daemon_threads_that_wait_at_the_end_print_nothing() -> None:
    """A traceback of theirs might abort the interpreter, which ends meanwhile; a message that one holds is given back."""
    with make(timeout=None) as sender:
        port = free_port()
        sent = sender.send(Message(b"held", f"127.0.0.1:{port}"))
        done = run_program(DAEMONS.replace("PORT", str(port)), "-W", "ignore")
        assert (done.returncode, done.stdout) == (0, "")
        assert "Exception in thread" not in done.stderr
        assert isinstance(sent.exception(PATIENCE), Abandoned)


FORK = """
import os, sys
from redpoll import Message, UsageError
from redpoll.blocking import QueueNode
with QueueNode(port=0) as node, QueueNode() as sender:
    address = node.address
    pending = sender.send(Message(b"before", address))
    waiting = node.get()
    child = os.fork()
    if not child:
        uses = {
            "release": waiting.release,
            "send": lambda: sender.send(Message(b"x", address)),
            "get": lambda: node.get(timeout=1),
            "get_nowait": node.get_nowait,
            "take": lambda: node.take(1),
            "iter": lambda: iter(node),
            "result": pending.result,
            "cancel": pending.cancel,
            "stats": node.stats,
            "ready": lambda: sender.ready(address),
        }
        for name, use in uses.items():
            try:
                use()
            except UsageError as error:
                assert "parent process" in str(error), error
            else:
                print("no error from", name)
        sender.stop()
        with QueueNode() as own:
            own.send(Message(b"from the child", address)).result()
        print("child done")
        sys.stdout.flush()
        if len(sys.argv) > 1:
            sys.exit()
        os._exit(0)
    waiting.release()
    pending.result()
    with node.take() as message:
        print(message.data)
    _, status = os.waitpid(child, 0)
    print("parent done", status)
"""


@pytest.mark.parametrize("end", ["at once", "as a program"])
def test_a_child_starts_its_own(end: str) -> None:
    """After a fork the child's nodes work beside the parent's, whose use is a clear error there."""
    program = FORK if end == "at once" else FORK.replace("if len(sys.argv) > 1:", "if True:")
    done = run_program(program, "-W", "error", "-W", "ignore::DeprecationWarning")
    assert sorted(done.stdout.splitlines()) == ["b'from the child'", "child done", "parent done 0"], done.stderr
    assert not done.stderr


MULTIPROCESSING = """
import multiprocessing
from redpoll import Message
from redpoll.blocking import QueueNode

def work(address, number):
    with QueueNode() as node:
        node.send(Message(b"%d" % number, address)).result()

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    with QueueNode(port=0) as node:
        children = [context.Process(target=work, args=(node.address, number)) for number in range(3)]
        for child in children:
            child.start()
        got = []
        for message in node:
            got.append(message.data)
            if len(got) == 3:
                message.release()
                break
        for child in children:
            child.join()
        print(sorted(got), [child.exitcode for child in children])
"""


def test_multiprocessing_forks() -> None:
    """Children that `multiprocessing` forks beside running nodes send with nodes of their own."""
    done = run_program(MULTIPROCESSING.replace("METHOD", "fork"), "-W", "ignore::DeprecationWarning")
    assert done.stdout == "[b'0', b'1', b'2'] [0, 0, 0]\n", done.stderr
    assert not done.stderr


def test_a_node_of_the_next_loop_talks_to_one_of_the_last() -> None:
    """A loop thread that ended leaves nothing behind that the next one trips over."""
    for _ in range(3):
        with make() as node, make() as sender:
            sent = sender.send(to(node))
            node.get(timeout=10).release()
            sent.result(10)


STOPPED = """
import signal
from redpoll import Closed, nq
from redpoll.blocking import QueueNode, connect, futures, loop_thread

def nodes():
    node = QueueNode(port=0)
    node.start()
    return node, node.stop, node._node.feed._lock, node.get

def buses():
    bus = connect("memory://").__enter__()
    return bus, bus.close, futures._lock, bus.tasks.next

def communicators():
    made = nq.new("tcp", "server", nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0)))
    return made, made.close, made._receive_queue._lock, made.get

for make in (nodes, buses, communicators):
    for common in (None, "futures._lock", "futures._condition", "loop_thread._lock"):
        with QueueNode(port=0):
            it, stop, lock, use = make()
            signal.signal(signal.SIGTERM, lambda *_: stop())
            with lock if common is None else eval(common):
                signal.raise_signal(signal.SIGTERM)
            stop()
            try:
                use()
            except (Closed, ConnectionError):
                print("ended")
"""


def test_signal_handlers_stop() -> None:
    """A signal handler that interrupts its thread while the loop may wait for that one's lock stops what it likes."""
    done = run_program(STOPPED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n" * 12, "")
