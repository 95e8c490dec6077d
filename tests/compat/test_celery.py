"""kombu and Celery on a hub: their own integration tests, and what the transport and the backend add to them."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery, group
from celery.exceptions import TimeoutError as CeleryTimeoutError

import redpoll.blocking
from redpoll.bus.envelope import Envelope
from redpoll.bus.records import Event
from redpoll.compat.celery import Arrivals
from redpoll.errors import UsageError
from tests.compat.sources import fetch_tests
from tests.test_examples import promised

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
#: Seconds that a test waits for something at most.
PATIENCE = 40.0


def python(*args: str, hub: str, **env: str) -> subprocess.Popen[str]:
    """Start a Python that knows the hub; what it prints can be read."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REDPOLL_TEST_HUB": hub, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_pytest(*args: str, hub: str, **env: str) -> None:
    """Run pytest in a process of its own, without this project's settings; a test that is skipped is no failure."""
    process = python("-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", *args, hub=hub, **env)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed[-20_000:]


def test_smoke_of_kombus_integration_tests(hub_url: str) -> None:
    """Some of kombu's integration tests for any transport pass on a hub: acknowledgements and exchanges."""
    tests = str(fetch_tests("kombu") / "t" / "integration")
    run_pytest(
        "tests/compat/kombu_suite.py", "-k", "TestMessage or direct or topic or loop", hub=hub_url, KOMBU_TESTS=tests
    )


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_kombus_integration_tests(hub_url: str) -> None:
    """All of them do."""
    tests = str(fetch_tests("kombu") / "t" / "integration")
    # They leave connections open, which this project's own tests may not.
    run_pytest("--noconftest", "tests/compat/kombu_suite.py", hub=hub_url, KOMBU_TESTS=tests)


def wait_for(reached: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.02)


class Workers:
    """Workers of Celery, each a process with children; they are killed behind the test."""

    def __init__(self, hub: str, log: Path) -> None:
        self.hub = hub
        self.log = log
        self._running: list[subprocess.Popen[str]] = []
        self._numbers = itertools.count()
        log.touch()

    def start(self, pool: str = "prefork") -> subprocess.Popen[str]:
        """Start one."""
        name = f"worker-{next(self._numbers)}@here"
        options = ["-P", pool, "-c", "2", "-n", name, "--without-mingle", "-l", "WARNING"]
        command = ["-m", "celery", "-A", "tests.compat.celery_app", "worker", *options]
        process = python(*command, hub=self.hub, REDPOLL_TEST_LOG=str(self.log))
        self._running.append(process)
        return process

    def begun(self) -> list[tuple[int, int]]:
        """The numbers of tasks that began, each with the process of its worker."""
        lines = self.log.read_text().splitlines()
        return [(int(number), int(worker)) for number, worker in map(str.split, lines)]

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill one with its children."""
        if process in self._running:
            self._running.remove(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def end(self) -> None:
        """Kill all."""
        for process in tuple(self._running):
            self.kill(process)


@pytest.fixture
def workers(hub_url: str, tmp_path: Path) -> Iterator[Workers]:
    """Where the workers of a test are."""
    made = Workers(hub_url, tmp_path / "log")
    yield made
    made.end()


@pytest.fixture
def app(hub_url: str) -> Iterator[Any]:
    """An application of this process, which knows the tasks of the workers by name."""
    made = Celery("caller", broker=hub_url, backend=hub_url, set_as_current=False)
    yield made
    made.pool.force_close_all()
    made.backend.close()
    made.close()


def task(app: Any, name: str, *args: object) -> Any:
    """Return a task of the workers with its arguments."""
    return app.signature(f"tests.compat.celery_app.{name}", args=args)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_run(pool: str, workers: Workers, app: Any) -> None:
    """Tasks run in forked processes and in threads, and their results come, one by one and as a group."""
    workers.start(pool)
    assert task(app, "add", 1, 2).delay().get(timeout=PATIENCE) == 3
    many = group((task(app, "add", number, number) for number in range(20)), app=app)
    assert many.delay().get(timeout=PATIENCE) == list(range(0, 40, 2))


@pytest.mark.timeout(120)
def test_tasks_of_a_killed_worker_run_elsewhere(workers: Workers, app: Any, tmp_path: Path) -> None:
    """A worker that is killed loses its tasks to another: those that it had begun, and those that it had only taken."""
    go = tmp_path / "go"
    first = workers.start()
    tasks = [task(app, "hold", number, str(go)).delay() for number in range(8)]
    wait_for(lambda: len(workers.begun()) == 2, first)
    workers.start()
    workers.kill(first)
    wait_for(lambda: sum(worker != first.pid for _, worker in workers.begun()) == 2)
    go.touch()
    done = [each.get(timeout=PATIENCE) for each in tasks]
    assert [number for number, _ in done] == list(range(8))
    assert first.pid not in {worker for _, worker in done}


def test_bindings_are_shared(hub_url: str) -> None:
    """A program sends to exchanges that it has not declared, and queues take what they are bound for."""
    exchange = kombu.Exchange("parts.1", "topic")
    one, other = (kombu.Queue(name, exchange, routing_key=key) for name, key in (("one", "a.*"), ("other", "#.c")))
    with kombu.Connection(hub_url) as connection, kombu.Connection(hub_url) as sender:
        channel = connection.channel()
        for queue in (one, other, one):
            queue(channel).declare()
        for key in ("a.b", "a.c", "c", "b"):
            sender.Producer().publish({"key": key}, exchange="parts.1", routing_key=key)
        found = [[queue(channel).get(no_ack=True) for _ in range(3)] for queue in (one, other)]
        keys = [[message and message.payload["key"] for message in messages] for messages in found]
        assert keys == [["a.b", "a.c", None], ["a.c", "c", None]]
        one(channel).unbind_from(exchange, "a.*")
        sender.Producer().publish({"key": "a.d"}, exchange="parts.1", routing_key="a.d")
        assert one(channel).get() is None


def test_messages_go_back_in_their_order(hub_url: str) -> None:
    """Tasks that a connection has taken, handed out or not, are there for others in the old order once it is closed."""
    with kombu.Connection(hub_url) as connection:
        queue = connection.SimpleQueue("work")
        for number in range(6):
            queue.put(number)
        taker = kombu.Connection(hub_url)
        consumer = taker.Consumer([kombu.Queue("work")], prefetch_count=4, callbacks=[lambda *_: None])
        consumer.consume()
        taker.drain_events(timeout=PATIENCE)
        taker.close()
        for number in range(6):
            message = queue.get(timeout=PATIENCE)
            assert message.payload == number
            # All that the other one had credit for.
            assert message.delivery_info["redelivered"] is (number < 4)
            message.ack()
        queue.close()


def test_another_queue_of_that_name(hub_url: str) -> None:
    """Declaring a queue with other settings than it has is a channel error, as with RabbitMQ."""
    with kombu.Connection(hub_url) as connection:
        kombu.Queue("work", max_priority=5)(connection.channel()).declare()
        with pytest.raises(connection.channel_errors, match="PRECONDITION_FAILED"):
            kombu.Queue("work")(connection.channel()).declare()


def test_rejected_messages_are_dead_letters(hub_url: str) -> None:
    """A message that is rejected for good is a dead letter, which can be looked at and put back."""
    with kombu.Connection(hub_url) as connection:
        queue = connection.SimpleQueue("work")
        queue.put({"id": 7})
        queue.get(timeout=PATIENCE).reject()
        with redpoll.blocking.connect(hub_url) as bus:
            (dead,) = bus.queues.browse("work", "dead")
            assert dead.envelope is not None
            assert json.loads(json.loads(bytes(dead.envelope.body))["body"]) == {"id": 7}
            assert bus.queues.redrive("work")
        assert queue.get(timeout=PATIENCE).payload == {"id": 7}
        queue.close()


def test_messages_of_other_programs_are_dead_letters(hub_url: str) -> None:
    """A message that kombu did not write becomes a dead letter; those behind it are handed out, by both ways of taking."""
    with kombu.Connection(hub_url) as connection, redpoll.blocking.connect(hub_url) as bus:
        for name in ("one", "two"):
            queue = connection.SimpleQueue(name)
            bus.tasks.submit({"id": 1}, name, no_reply=True)
            queue.put(2)
            message = queue.get(timeout=PATIENCE) if name == "one" else queue.queue.get()
            assert message.payload == 2
            message.ack()
            queue.close()
            (dead,) = bus.queues.browse(name, "dead")
            assert "not a message of kombu: UnicodeDecodeError" in dead.history[-1]


def test_letting_go_twice(hub_url: str, app: Any) -> None:
    """A backend that is closed twice leaves the link to others of the process."""
    backend = app.backend
    other = Celery("other", backend=hub_url, set_as_current=False).backend
    other.store_result("one", 5, "SUCCESS")
    link = other._bus
    assert backend._bus is link
    for _ in range(2):
        backend.close()
    assert link.entered
    other.close()
    assert not link.entered


def test_results_of_an_iterator_of_ids(app: Any) -> None:
    """The ids of tasks may come from an iterator."""
    for name in ("one", "two"):
        app.backend.store_result(name, name, "SUCCESS")
    found = dict(app.backend.get_many(iter(["one", "two"]), timeout=PATIENCE))
    assert {name: meta["result"] for name, meta in found.items()} == {"one": "one", "two": "two"}


def test_updates_that_nobody_reads_are_few() -> None:
    """Of the events of a subject that come while nobody reads, the last one is kept, in the place of the first."""
    arrivals = Arrivals()
    for number in range(50):
        arrivals.put(event("one", number))
        arrivals.put(event("two", number))
    assert [arrivals.take(0), arrivals.take(0)] == [event("one", 49), event("two", 49)]
    with pytest.raises(queue.Empty):
        arrivals.take(0.01)
    arrivals.put(event("one", 50))
    assert arrivals.take(0) == event("one", 50)


def event(subject: str, number: int) -> Event:
    """An event of a subject."""
    return Event(subject, Envelope("raw", str(number).encode()))


def test_an_event_that_comes_while_another_is_taken() -> None:
    """An event that a thread puts while another one takes is taken, now or next."""
    arrivals = Arrivals()

    def put_all() -> None:
        for number in range(20_000):
            arrivals.put(event("one", number))

    put = threading.Thread(target=put_all)
    put.start()
    found = None
    while found is None or found.envelope.body != b"19999":
        found = arrivals.take(PATIENCE) or found
    put.join()


def test_updates_of_a_task_that_is_waited_for(app: Any) -> None:
    """States of a task that come while its results are not read end no waiting; the result does."""
    backend = app.backend
    backend.store_result("two", 2, "SUCCESS")
    coming = backend._ready(["one", "two"], PATIENCE, None, None)
    assert next(coming)[0] == "two"
    for number in range(50):
        backend.store_result("one", {"done": number}, "STARTED")
    backend.store_result("one", 1, "SUCCESS")
    name, meta = next(coming)
    assert (name, meta["result"]) == ("one", 1)
    coming.close()


def sent(app: Any, count: int) -> list[Any]:
    """Note tasks as sent; return their results."""
    for number in range(count):
        app.backend.on_task_call(None, f"task-{number}")
    return [app.AsyncResult(f"task-{number}") for number in range(count)]


def test_results_of_tasks_sent_come_ahead(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one result is waited for, those of the other tasks sent come without being asked for, now and later."""
    results = sent(app, 40)
    for number in range(20):
        app.backend.store_result(f"task-{number}", number, "SUCCESS")
    app.backend.store_result("task-20", {"done": 1}, "STARTED")
    assert results[0].get(timeout=PATIENCE) == 0
    for number in range(20, 39):
        app.backend.store_result(f"task-{number}", number, "SUCCESS")
    app.backend.store_result("task-39", "x" * 10_000, "SUCCESS")
    # Over the same link: what was stored before has come then.
    assert app.backend.get(app.backend.get_key_for_task("task-39"))
    with monkeypatch.context() as patch:
        patch.setattr("redpoll.compat.celery.watch", None)
        assert [each.get(timeout=PATIENCE) for each in results[1:39]] == list(range(1, 39))
    # One that is large is left at the hub until it is asked for.
    assert len(results[39].get(timeout=PATIENCE)) == 10_000
    assert not app.backend._ahead.found
    # Nothing more is to come.
    assert not app.backend._ahead.is_over
    assert not app.backend._ahead._watched


def test_few_results_are_asked_for_one_by_one(app: Any) -> None:
    """A program that waits for each task as it sends it watches no others."""
    for result in sent(app, 3):
        app.backend.store_result(result.id, 5, "SUCCESS")
        assert result.get(timeout=PATIENCE) == 5
    assert not app.backend._ahead.sent
    assert not app.backend._ahead._watched


def test_results_ahead_that_nobody_reads_are_bounded(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks noted, results kept and watches open are limited; results beyond that are asked for when they are waited for."""
    monkeypatch.setattr("redpoll.compat.celery._AHEAD", 20)
    ahead = app.backend._ahead
    for number in range(6):
        results = [app.AsyncResult(f"{number}-{each}") for each in range(30)]
        for result in results:
            app.backend.on_task_call(None, result.id)
            app.backend.store_result(result.id, result.id, "SUCCESS")
        assert len(ahead.sent) == 20
        assert results[0].get(timeout=PATIENCE) == results[0].id
        assert not ahead.sent
        assert len(ahead.found) <= 20
        assert [each.get(timeout=PATIENCE) for each in results[15:]] == [each.id for each in results[15:]]
    for number in range(3):
        waited = sent(app, 17)[number]
        app.backend.store_result(waited.id, number, "SUCCESS")
        assert waited.get(timeout=PATIENCE) == number
        assert len(ahead._left) <= 20


def test_results_ahead_of_a_connection_that_was_closed(app: Any) -> None:
    """Messages of a connection are gone with it, and a forgotten result is not an earlier one."""
    results = sent(app, 20)
    for result in results:
        app.backend.store_result(result.id, 5, "SUCCESS")
    assert results[0].get(timeout=PATIENCE) == 5
    results[1].forget()
    with pytest.raises(CeleryTimeoutError):
        results[1].get(timeout=0.01)
    before = app.backend._ahead
    app.backend.close()
    assert results[2].get(timeout=PATIENCE) == 5
    assert app.backend._ahead is not before
    app.backend._bus.close()


@pytest.mark.parametrize("url", ["redpoll+amqp://guest:secret@127.0.0.1//", "redpoll+memory://"])
def test_other_engines_are_refused(url: str) -> None:
    """RabbitMQ by redpoll's transport or backend is refused, with what to do, before anything is connected."""
    with pytest.raises(UsageError, match="need a hub") as refused, kombu.Connection(url) as connection:
        connection.connect()
    assert "amqp://HOST, which is kombu's own" in str(refused.value.hint)
    assert "secret" not in str(refused.value)
    made = Celery("refused", broker=url, backend=url, set_as_current=False)
    with pytest.raises(UsageError, match="need a hub"):
        made.backend  # noqa: B018  # raises


def test_a_success_is_stored_at_once(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A success is stored without a look at what is there, and no failure that comes late replaces it."""
    with monkeypatch.context() as patch:
        patch.setattr(app.backend, "mget", None)
        app.backend.store_result("one", 5, "SUCCESS")
    app.backend.store_result("one", ValueError("late"), "FAILURE")
    assert app.AsyncResult("one").get(timeout=PATIENCE) == 5


def test_results_expire_and_are_forgotten(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is there until it is forgotten, or older than `result_expires`; one that comes late ends no waiting."""
    backend = app.backend
    for name in ("one", "two"):
        backend.store_result(name, 5, "SUCCESS")
        assert app.AsyncResult(name).get(timeout=PATIENCE) == 5
    app.AsyncResult("one").forget()
    now = time.time()
    backend._cache.clear()
    assert app.AsyncResult("one").state == "PENDING"
    assert app.AsyncResult("two").state == "SUCCESS"
    monkeypatch.setattr("redpoll.compat.results.time.time", lambda: now + 86_401)
    backend._cache.clear()
    assert app.AsyncResult("two").state == "PENDING"
    with pytest.raises(CeleryTimeoutError):
        app.AsyncResult("two").get(timeout=0.01)


def test_example() -> None:
    """The example that kills a worker prints what it promises."""
    path = ROOT / "examples" / "compat" / "celery_killed_worker.py"
    process = python(str(path), hub="")
    printed, _ = process.communicate()
    assert printed == promised(path)
    assert process.returncode == 0


FORKED = """
import os, sys
import kombu
import redpoll.compat.kombu

connection = kombu.Connection(sys.argv[1])
queue = connection.SimpleQueue("work")
queue.put("parent")
mine = queue.get(timeout=30)
child = os.fork()
if not child:
    other = kombu.Connection(sys.argv[1]).SimpleQueue("work")
    other.put("child")
    connection.close()  # it is the parent's
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert mine.payload == "parent"
theirs = queue.get(timeout=30)
assert theirs.payload == "child", theirs
mine.ack()
theirs.ack()
connection.close()
"""


def test_forked_process(hub_url: str) -> None:
    """A forked process has a link of its own, and leaves what its parent has taken alone."""
    process = python("-c", FORKED, hub_url, hub=hub_url)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", ["test_canvas.py", "test_tasks.py", "others"])
def test_celerys_integration_tests(part: str, hub_url: str) -> None:
    """Celery's integration tests pass on a hub, as broker and backend, but those that name another server."""
    folder = fetch_tests("celery")
    tests = folder / "t" / "integration"
    # What is imported by tests of other servers is not there.
    ignored = ["test_backend", "test_cache_backend", "test_database_backend", "test_redis_backend"]
    if part == "others":
        ignored += ["test_canvas", "test_tasks"]
        chosen = [str(tests), *(f"--ignore={tests / each}.py" for each in ignored)]
    else:
        chosen = [str(tests / part)]
    plugins = ["-p", "celery.contrib.pytest", "-p", "tests.compat.celery_suite", "-o", "python_classes=test_*"]
    path = f"{ROOT}{os.pathsep}{folder}"
    run_pytest(
        *plugins,
        *chosen,
        hub=hub_url,
        TEST_BROKER=hub_url,
        TEST_BACKEND=hub_url,
        PYTHONPATH=path,
        WORKER_LOGLEVEL="INFO",
    )
