"""The communicator for threads, beyond what kiwiPy's own tests of 0.5.3 ask for."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import kiwipy
import pytest

from redpoll.compat import kiwipy as rmq
from redpoll.errors import ConfigError, EncodeError, UsageError
from tests.blocking.support import PATIENCE, until

pytestmark = pytest.mark.interop

Communicator = rmq.RmqThreadCommunicator


def result_of(sent: Future[Any] | None) -> Any:
    """Wait for what was sent."""
    assert sent is not None
    return sent.result(PATIENCE)


@pytest.fixture
def comm(url: str) -> Iterator[Communicator]:
    """A communicator."""
    with Communicator.connect({"url": url}, task_queue="work") as made:
        yield made


@pytest.fixture
def other(url: str) -> Iterator[Communicator]:
    """Another one on the same engine."""
    with rmq.connect(url, task_queue="work", async_task_timeout=None) as made:
        yield made


def test_closed_it_refuses_every_verb(url: str) -> None:
    """K-01, K-02: closed, by its block too, each verb raises CommunicatorClosed; what is pending fails as well."""
    with rmq.connect(url) as comm:
        pending = comm.task_send("x")
        assert pending is not None
        assert not comm.is_closed()
        queue = comm.task_queue("another")
    assert comm.is_closed()
    comm.close()
    with pytest.raises(kiwipy.CommunicatorClosed):
        pending.result(PATIENCE)
    verbs: tuple[Any, ...] = (
        lambda: comm.add_rpc_subscriber(print),
        lambda: comm.rpc_send("x", 1),
        lambda: comm.add_task_subscriber(print),
        lambda: comm.task_send(1),
        lambda: comm.add_broadcast_subscriber(print),
        lambda: comm.broadcast_send(1),
        lambda: comm.add_close_callback(print, False),
        lambda: comm.task_queue("x"),
        lambda: queue.task_send(1),
    )
    for verb in verbs:
        with pytest.raises(kiwipy.CommunicatorClosed):
            verb()


def test_unknown_subscribers_cannot_be_removed(comm: Communicator) -> None:
    """K-13: an identifier that is not there is a ValueError, and one that is there twice a duplicate; others are made."""
    for kind in ("rpc", "task", "broadcast"):
        add, remove = getattr(comm, f"add_{kind}_subscriber"), getattr(comm, f"remove_{kind}_subscriber")
        with pytest.raises(ValueError, match="nkn"):
            remove("nobody")
        assert add(print, "somebody") == "somebody"
        with pytest.raises(kiwipy.DuplicateSubscriberIdentifier):
            add(print, "somebody")
        remove(add(print))
        remove("somebody")


def test_exact_and_compiled_filters(comm: Communicator, other: Communicator) -> None:
    """K-18, K-19: kiwiPy's own filters decide, as text or compiled; a broadcast reaches other communicators too."""
    heard: list[Any] = []
    exact = kiwipy.BroadcastFilter(lambda _, body, *fields: heard.append(("exact", body, *fields)), sender="bob.jones")
    compiled = kiwipy.BroadcastFilter(lambda _, body, *fields: heard.append(("compiled", body, *fields)))
    compiled.add_subject_filter(re.compile("^purchase.(car|piano)$"))
    other.add_broadcast_subscriber(exact)
    other.add_broadcast_subscriber(compiled)
    for sender, subject in (("bob.jones", "sell.car"), ("alice", "purchase.car"), ("alice", "purchase.house")):
        assert comm.broadcast_send((1, 2), sender, subject, 7) is True
    until(lambda: len(heard) == 2, "what was sent")
    assert heard == [
        ("exact", (1, 2), "bob.jones", "sell.car", 7),
        ("compiled", (1, 2), "alice", "purchase.car", 7),
    ]


def test_a_broadcast_stays_in_its_scope(url: str, comm: Communicator) -> None:
    """Communicators of another message exchange have neither the broadcasts nor the recipients of this one."""
    heard: list[Any] = []
    with rmq.connect(url, message_exchange="of another profile: a/b#1") as elsewhere:
        elsewhere.add_broadcast_subscriber(lambda *fields: heard.append(fields[1:]))
        elsewhere.add_rpc_subscriber(lambda _, message: message, "12")
        with pytest.raises(kiwipy.UnroutableError):
            comm.rpc_send("12", 1)
        comm.broadcast_send("here")
        elsewhere.broadcast_send("there", subject="x")
        until(lambda: heard, "what was sent")
        assert heard == [("there", None, "x", None)]
        assert elsewhere.rpc_send("12", "yes").result(PATIENCE) == "yes"


def test_a_failing_subscriber_leaves_the_others_alone(comm: Communicator, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a subscriber for broadcasts is logged, and the others have the broadcast, and the next one."""
    heard: list[Any] = []
    comm.add_broadcast_subscriber(lambda *_: 1 / 0)
    comm.add_broadcast_subscriber(lambda _, body, *__: heard.append(body))
    comm.broadcast_send(1)
    comm.broadcast_send(2)
    until(lambda: heard == [1, 2], "what was sent")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [StopIteration, SystemExit, GeneratorExit])
def test_what_no_future_can_raise_ends_one_task(comm: Communicator, error: type[BaseException]) -> None:
    """An iterator's end and the like are the outcome of one task or call; the subscriber is called for what follows."""
    calls: list[Any] = []

    def work(_: object, body: Any, *__: object) -> Any:
        calls.append(body)
        if body == "leave":
            raise error
        return body

    comm.add_task_subscriber(work)
    comm.add_rpc_subscriber(work, "adder")
    comm.add_broadcast_subscriber(work)
    for send in (comm.task_send, lambda body: comm.rpc_send("adder", body)):
        with pytest.raises(kiwipy.RemoteException, match=f"the function raised {error.__name__}"):
            result_of(send("leave"))
        assert result_of(send("stay")) == "stay"
    comm.broadcast_send("leave")
    comm.broadcast_send("stay")
    until(lambda: calls == ["leave", "stay"] * 3, "the broadcasts")


def test_a_queue_of_its_own_with_a_future(comm: Communicator, other: Communicator) -> None:
    """K-09, K-23: in a queue with a name a subscriber may return a future: the sender has one meanwhile, then the value."""
    later = kiwipy.Future()
    other.task_queue("aside").add_task_subscriber(lambda _, task: later)
    sent = comm.task_queue("aside").task_send("x")
    meanwhile = result_of(sent)
    assert isinstance(meanwhile, kiwipy.Future)
    later.set_result(("a", "tuple"))
    assert meanwhile.result(PATIENCE) == ("a", "tuple")


def test_a_rejected_task_is_offered_to_the_next(comm: Communicator, other: Communicator) -> None:
    """KX-04: TaskRejected moves a task on to the next subscriber, and after the last one to another communicator."""
    tried: list[str] = []

    def reject(_: Any, task: str) -> None:
        tried.append(task)
        raise kiwipy.TaskRejected

    first, second = comm.add_task_subscriber(reject), comm.add_task_subscriber(lambda _, task: f"{task} was taken")
    assert result_of(comm.task_send("one")) == "one was taken"
    comm.remove_task_subscriber(second)
    sent = comm.task_send("two")
    until(lambda: "two" in tried, "what was sent")
    other.add_task_subscriber(lambda comm, task: (comm is other, task))
    assert result_of(sent) == (True, "two")
    comm.remove_task_subscriber(first)


def test_a_cancelled_future_cancels_what_waits_for_it(comm: Communicator) -> None:
    """A future that a subscriber returned and that is cancelled cancels the sender's: of a task, and of a call."""
    later = [kiwipy.Future(), kiwipy.Future()]
    comm.add_task_subscriber(lambda *_: later[0])
    comm.add_rpc_subscriber(lambda *_: later[1], "recipient")
    for future, sent in zip(later, (comm.task_send(1), comm.rpc_send("recipient", 1)), strict=True):
        meanwhile = result_of(sent)
        future.cancel()
        with pytest.raises(kiwipy.CancelledError):
            meanwhile.result(PATIENCE)


def test_one_task_is_taken(comm: Communicator) -> None:
    """K-24, K-25, K-29: a task is taken and given its outcome in two ways; of an empty queue none."""
    queue = comm.task_queue("drawer")
    sent = [queue.task_send(("t", number)) for number in range(2)]
    with queue.next_task() as task:
        assert (task.body, task.no_reply, task.state) == (("t", 0), False, "pending")
        task.process().set_result("first")
    with queue.next_task(timeout=1) as task, task.processing() as outcome:
        assert (task.body, task.state) == (("t", 1), "processing")
        outcome.set_result("second")
    assert [result_of(each) for each in sent] == ["first", "second"]
    assert task.state == "finished"
    with pytest.raises(kiwipy.QueueEmpty), queue.next_task(timeout=5):
        pass
    with queue.next_task(fail=False) as nothing:
        assert nothing is None


def test_iterating(comm: Communicator) -> None:
    """K-26, K-27: iterating has each task once; what was not worked on is there again when it ended."""
    queue = comm.task_queue("drawer")
    sent = [queue.task_send(number) for number in range(10)]
    for task in queue:
        if task.body < 5:
            with task.processing() as outcome:
                outcome.set_result(task.body * 2)
    for task in queue:
        task.process().set_result(task.body * 3)
    assert [result_of(each) for each in sent] == [0, 2, 4, 6, 8, 15, 18, 21, 24, 27]
    until(lambda: not list(queue), "what was sent")


def test_a_dropped_outcome_gives_the_task_back(comm: Communicator) -> None:
    """K-28: a task is nobody else's while its outcome is held, and there again when that was dropped."""
    queue = comm.task_queue("drawer")
    sent = queue.task_send("x")
    with queue.next_task() as task:
        outcome = task.process()
    with pytest.raises(kiwipy.QueueEmpty), queue.next_task():
        pass
    del outcome
    gc.collect()
    until(lambda: task.state == "requeued", "what was sent")
    with queue.next_task() as task:
        task.process().set_result("again")
    assert result_of(sent) == "again"


def test_a_cancelled_outcome_makes_the_task_pending(comm: Communicator) -> None:
    """An outcome that is cancelled leaves the task to be worked on, or given back; in a wrong state neither can be."""
    queue = comm.task_queue("drawer")
    sent = queue.task_send("x", no_reply=True)
    assert sent is None
    with queue.next_task() as task:
        assert task.no_reply
        task.process().cancel()
        until(lambda: task.state == "pending", "what was sent")
        outcome = task.process()
        with pytest.raises(asyncio.InvalidStateError), task.processing():
            pass
        task.requeue()
        with pytest.raises(asyncio.InvalidStateError):
            task.requeue()
        outcome.set_result("too late")
    with queue.next_task() as task:
        task.process().set_result(None)
    until(lambda: task.state == "finished", "what was sent")


def test_an_exception_while_processing(comm: Communicator) -> None:
    """K-30: an exception in the block is the worker's, and the sender's outcome; the queue is empty afterwards."""
    queue = comm.task_queue("drawer")
    sent = queue.task_send("x")
    with pytest.raises(RuntimeError, match="broken"), queue.next_task() as task, task.processing():
        raise RuntimeError("broken")
    with pytest.raises(kiwipy.RemoteException, match="broken"):
        result_of(sent)
    with pytest.raises(kiwipy.QueueEmpty), queue.next_task():
        pass


def test_values_that_cannot_be_sent(url: str) -> None:
    """A task that cannot be encoded fails where it is sent, a result that cannot with its sender; neither is done again."""
    with rmq.connect(url, encoder=json.dumps, decoder=json.loads) as comm:
        with pytest.raises(EncodeError):
            comm.task_send(object())
        comm.add_task_subscriber(lambda *_: object())
        comm.add_rpc_subscriber(lambda *_: object(), "recipient")
        for sent in (comm.task_send([1]), comm.rpc_send("recipient", (1,))):
            with pytest.raises(kiwipy.RemoteException, match="not JSON serializable"):
                result_of(sent)


def test_close_callbacks(url: str) -> None:
    """K-31: a close callback is called once when the communicator is closed; a weak one while it is referred to."""
    called: list[Any] = []
    comm = rmq.connect(url)

    def weak(*_: object) -> None:
        called.append("weak")

    def fails(*_: object) -> None:
        raise ValueError("not the communicator's")

    comm.add_close_callback(lambda _, error: called.append(error))
    comm.add_close_callback(fails)
    comm.add_close_callback(weak, weak=True)
    comm.add_close_callback(lambda *_: called.append("gone"), weak=True)
    comm.close()
    comm.close()
    assert sorted(map(str, called)) == ["None", "weak"]


async def _in_a_notebook(url: str) -> Any:
    comm = rmq.connect(url)
    comm.add_rpc_subscriber(lambda _, message: f"{message}!", "square")
    sent = comm.rpc_send("square", "hello")
    assert sent.result(PATIENCE) == "hello!"
    comm.close()
    comm.close()
    return sent


def test_in_a_notebook(url: str) -> None:
    """K-32: it is used where another event loop runs; a result stays readable after it was closed."""
    assert asyncio.run(_in_a_notebook(url)).result() == "hello!"


def test_properties_of_the_server(comm: Communicator) -> None:
    """K-33: the properties name product, version, platform and engine; there is no Erlang to be named."""
    properties = comm.server_properties
    assert (properties["product"], properties["platform"].split()[0]) == ("redpoll", "Python")
    assert properties["engine"] in {"amqp", "memory", "redpoll"}
    assert properties["version"]


def test_subscribers_run_in_a_thread_and_may_use_it(comm: Communicator) -> None:
    """Plain functions are called in one thread, coroutine functions on the loop; results may come from elsewhere."""
    threads: list[str] = []

    def nested(caller: Any, message: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert caller is comm
        # Blocks kiwiPy's own loop until its timeout.
        caller.broadcast_send("from a subscriber")
        return pool.submit(lambda: f"{message} of a pool")

    async def coroutine(_: Any, message: Any) -> Any:
        with pytest.raises(UsageError):
            comm.broadcast_send("the loop would wait for itself")
        return f"{message} of a coroutine"

    with ThreadPoolExecutor(1) as pool:
        comm.add_rpc_subscriber(nested, "nested")
        comm.add_rpc_subscriber(coroutine, "coroutine")
        assert comm.rpc_send("nested", "x").result(PATIENCE).result(PATIENCE) == "x of a pool"
        assert comm.rpc_send("coroutine", "x").result(PATIENCE) == "x of a coroutine"
    assert threads == ["redpoll communicator_0"]


def test_a_step_that_takes_too_long_has_no_later_effect() -> None:
    """A step that exceeds the timeout is cancelled: what it would have subscribed is not there afterwards."""
    with rmq.connect("memory://", async_task_timeout=0.05) as comm:
        order = comm._communicator._order
        comm._way.wait(order.acquire)
        with pytest.raises(kiwipy.TimeoutError):
            comm.add_broadcast_subscriber(print, "late")
        comm.loop().call_soon_threadsafe(order.release)
        comm._way._timeout = None
        assert comm.add_broadcast_subscriber(print, "late") == "late"


def test_arguments_of_aio_pika() -> None:
    """Arguments of a connection to RabbitMQ become a URL; an option that the engine has not is an error."""
    made = rmq.Connection(host="rabbit", port=5, login="a b", password="c/d", virtualhost="e/f", heartbeat=7)
    assert (str(made), made._url.user, made._url.password, made._url.path) == ("amqp://rabbit", "a b", "c/d", "e/f")
    assert rmq.Connection(ssl=True)._url.scheme == "amqps"
    assert rmq.Connection()._url.hosts == (("127.0.0.1", None),)
    with pytest.raises(ConfigError):
        rmq.Connection("memory://", mistyped=1)


def test_it_stands_in_for_kiwipys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`install` puts it in the place of `kiwipy.rmq` and `kiwipy.connect`; each public name of 0.9 is there."""
    for name in ("", ".communicator", ".defaults", ".tasks", ".threadcomms"):
        monkeypatch.delitem(sys.modules, f"kiwipy.rmq{name}", raising=False)
        monkeypatch.setitem(sys.modules, f"kiwipy.rmq{name}", rmq)
    monkeypatch.setattr(kiwipy, "rmq", None, raising=False)
    monkeypatch.setattr(kiwipy, "connect", kiwipy.connect)
    rmq.install()
    from kiwipy.rmq import (  # isort: skip
        RmqCommunicator,
        RmqIncomingTask,
        RmqTaskPublisher,
        RmqTaskQueue,
        RmqTaskSubscriber,
        RmqThreadCommunicator,
        RmqThreadTaskQueue,
        async_connect,
        connect,
        defaults,
    )
    from kiwipy.rmq.tasks import RmqIncomingTask as Task

    assert Task is RmqIncomingTask
    assert {RmqCommunicator, RmqTaskPublisher, RmqTaskQueue, RmqTaskSubscriber, RmqThreadTaskQueue, async_connect}
    assert (connect, defaults.TASK_QUEUE) == (kiwipy.connect, "kiwipy.tasks")
    with kiwipy.connect("memory://") as comm:
        assert isinstance(comm, RmqThreadCommunicator)
        assert isinstance(comm, kiwipy.Communicator)
