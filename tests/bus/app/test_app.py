"""Apps: decorated functions that are submitted, called, told and scheduled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import redpoll
from redpoll import GIVEN, App, Middleware, Retry
from redpoll.bus import Broadcast, Bus, Task, current_context
from redpoll.bus.app import Proceed, Work
from redpoll.errors import BadPayload, ConfigError, RemoteError, TimeLimit, UsageError
from redpoll.testing.apps import AppFactory
from tests.bus.tasks.support import turns, until

pytestmark = pytest.mark.asyncio


class Pool:
    """A value that a lifespan yields."""

    def __init__(self) -> None:
        self.rows: list[str] = []


class Cache:
    """A value that another one yields."""


@dataclass
class State:
    """The body of a broadcast."""

    name: str
    number: int


async def test_a_function_is_submitted_and_stays_itself(redpoll_app: AppFactory) -> None:
    """A decorated function is called as ever; submitted, a worker does it and the handle has the result."""
    app = App()

    @app.task(queue="images")
    async def resize(path: str, width: int = 800) -> str:
        return f"{path} at {width}"

    @app.task
    def double(number: int) -> int:
        """Say what it does."""
        return 2 * number

    assert await resize("a.png") == "a.png at 800"
    assert double(2) == 4
    assert (double.__name__, double.__doc__) == ("double", "Say what it does.")
    async with redpoll_app(app) as running:
        handle = await resize.submit("a.png", width=200)
        assert await handle.result() == "a.png at 200"
        assert await double.run(21) == 42
        assert [each async for each in double.map(range(5))] == [0, 2, 4, 6, 8]
        assert [each async for each in resize.map(["b", "c"], width=1)] == ["b at 1", "c at 1"]
        assert [each[:2] for each in running.submitted[:2]] == [
            ("images:resize", {"path": "a.png", "width": 200}),
            ("tasks:double", {"number": 21}),
        ]


async def test_plain_functions_run_in_threads(redpoll_app: AppFactory) -> None:
    """A plain function does not block the loop, and has the headers of its task."""
    app, gate = App(), threading.Event()

    @app.task
    def wait() -> Any:
        gate.wait(10)
        return current_context().headers.get("user")

    @app.task
    async def release() -> None:
        gate.set()

    async with redpoll_app(app):
        waiting = await wait.prepare(headers={"user": "ada"}).submit()
        await release.run()
        assert await waiting.result(10) == "ada"


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_no_future_can_raise_ends_its_own_function_alone(
    redpoll_app: AppFactory, error: type[BaseException]
) -> None:
    """An empty iterator's end, or sys.exit() in a thread, is the outcome of its task or call; the worker goes on."""
    app, heard = App(), asyncio.Event()

    @app.task
    def work() -> None:
        raise error

    @app.call
    def answer() -> None:
        raise error

    @app.on("news")
    def hear(body: int) -> None:
        if not body:
            raise error
        loop.call_soon_threadsafe(heard.set)

    loop = asyncio.get_running_loop()
    async with redpoll_app(app):
        for run in (work.run, answer.call):
            with pytest.raises((RemoteError, RuntimeError), match=f"the function raised {error.__name__}"):
                await asyncio.wait_for(run(), 5)
        for body in range(2):
            await app.bus.broadcast.send(body, subject="news")
        await asyncio.wait_for(heard.wait(), 5)


async def test_options_of_submitting(redpoll_app: AppFactory) -> None:
    """`prepare` has the options of submitting; `dedup` makes a key of the arguments."""
    app = App()

    @app.task(dedup=lambda number: f"key {number}")
    async def once(number: int) -> int:
        return number

    async with redpoll_app(app) as running:
        late = await once.prepare(delay=60).submit(1)
        assert await late.state() == "delayed"
        again = await once.submit(1)
        assert (again.id, again.duplicate) == (late.id, True)
        await running.drain()
        assert await again.result() == 1
        assert running.time.time() >= 60
        other = await once.prepare(dedup="mine").submit(1)
        assert not other.duplicate


async def test_each_function_has_its_own_policy(redpoll_app: AppFactory) -> None:
    """Functions that share a queue have retries and time limits of their own."""
    app, tries = App(), []

    @app.task(retry=Retry(times=2, on=OSError))
    async def flaky(task: Task = GIVEN) -> int:
        tries.append(task.tries)
        if task.tries < 3:
            raise OSError("not yet")
        return task.tries

    @app.task
    async def fails() -> None:
        raise OSError("for good")

    @app.task(time_limit=5)
    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    async with redpoll_app(app) as running:
        handle, failing, late = await flaky.submit(), await fails.submit(), await slow.submit()
        with pytest.raises(RemoteError, match="for good"):
            await failing.result()
        await running.time.advance(5)
        with pytest.raises(TimeLimit):
            await late.result(1)
        await running.drain()
        assert await handle.result() == 3
    assert tries == [1, 2, 3]


async def test_the_time_limit_of_a_thread(redpoll_app: AppFactory) -> None:
    """The outcome of a plain function that is too slow is recorded at once, and its slot is used until it returns."""
    app, gate = App(), threading.Event()
    begun = threading.Event()

    @app.task(time_limit=5)
    def slow() -> None:
        begun.set()
        gate.wait(10)

    @app.task
    async def other() -> int:
        return 1

    async with redpoll_app(app, concurrency=1) as running:
        late, behind = await slow.submit(), await other.submit()
        await until(begun.is_set)
        await running.time.advance(5)
        with pytest.raises(TimeLimit):
            await late.result(1)
        assert await behind.state() == "ready"
        gate.set()
        assert await behind.result() == 1


async def test_a_thread_keeps_its_task_when_the_app_stops_working(redpoll_app: AppFactory) -> None:
    """A plain function cannot be stopped: its task does not go back to be done twice, and its result counts."""
    app, gate, calls = App(), threading.Event(), []

    @app.task
    def slow() -> str:
        calls.append(1)
        gate.wait(10)
        return "done"

    async with redpoll_app(app, work=False):
        handle = await slow.submit()
        async with app.work(drain=0):
            await until(lambda: calls)
            asyncio.get_running_loop().call_later(0.05, gate.set)
        async with app.work():
            assert await handle.result(5) == "done"
    assert calls == [1]


async def test_nothing_is_received_while_handlers_finish(redpoll_app: AppFactory) -> None:
    """Leaving, no queue hands out any more, no call is taken and no broadcast, while a handler of another one ends."""
    app, gate, calls, begun = App(), asyncio.Event(), [], asyncio.Event()

    @app.task(queue="slow")
    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "done"

    @app.task(queue="other")
    async def other() -> None:
        calls.append("task")

    @app.on("news")
    async def news() -> None:
        calls.append("news")

    @app.call
    def ask() -> None:
        calls.append("call")

    async with redpoll_app(app, work=False) as running:
        working = app.work()
        await working.__aenter__()
        handle = await slow.submit()
        await begun.wait()
        leaving = asyncio.ensure_future(working.__aexit__(None, None, None))
        await turns()
        late = await other.submit()
        await running.bus.broadcast.send(1, subject="news")
        with pytest.raises(redpoll.NoRoute):
            await ask.prepare(timeout=5).call()
        await turns()
        assert not leaving.done()
        gate.set()
        await leaving
        assert await handle.result() == "done"
        assert await late.state() == "ready"
    assert calls == []


async def test_the_lifespan_gives_by_annotation(redpoll_app: AppFactory) -> None:
    """The value of the lifespan is given to handlers by its class, is left behind the last message, and is not sent."""
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[tuple[Pool, Cache]]:
        seen.append("open")
        yield Pool(), Cache()
        seen.append("closed")

    app = App(lifespan=lifespan)

    @app.task
    async def store(row: str, *, pool: Pool = GIVEN, app_: App = GIVEN) -> int:
        assert app_ is app
        pool.rows.append(row)
        return len(pool.rows)

    @app.call
    def count(pool: Pool = GIVEN) -> int:
        return len(pool.rows)

    mine = Pool()
    assert await store("a", pool=mine, app_=app) == 1
    async with redpoll_app(app, work=False) as running:
        handle = await store.submit("b")
        assert seen == []
        async with app.work():
            assert await handle.result() == 1
            assert await count.call() == 1
            assert seen == ["open"]
        assert running.submitted[0].arguments == {"row": "b"}
    assert seen == ["open", "closed"]


async def test_schedules(redpoll_app: AppFactory) -> None:
    """A scheduled function is called at its times, once each, however many processes set them; and as any task."""
    app, calls = App(), []

    @app.schedule(every=60)
    async def tick() -> int:
        calls.append(1)
        return len(calls)

    @app.schedule("0 3 * * *", zone="Europe/Berlin", missed="skip", queue="night")
    async def nightly() -> None: ...

    async with redpoll_app(app, work=False) as running:
        async with app.work(), app.work():
            await running.time.advance(90)
            await running.drain()
        assert len(calls) == 1
        async with app.work():
            # Its times go on where they were, though the app was started anew.
            await running.time.advance(31)
            await running.drain()
            assert len(calls) == 2
            assert await tick.run() == 3
        found = {each.name: each for each in await running.bus.engine.schedules()}
        assert (found["tasks:tick"].every, found["tasks:tick"].missed) == (60.0, "once")
        nightly_ = found["night:nightly"]
        assert (nightly_.cron, nightly_.zone, nightly_.missed) == ("0 3 * * *", "Europe/Berlin", "skip")


async def test_what_nobody_gives_is_told_at_the_start(redpoll_app: AppFactory) -> None:
    """An argument that is to be given a class that the lifespan did not yield is an error before the first message."""
    app = App()

    @app.task
    async def store(pool: Pool = GIVEN) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="'pool' is to be given a Pool, and there is none: only App"):
        async with redpoll_app(app):
            pass


async def test_a_stream_is_given_no_broadcast(redpoll_app: AppFactory) -> None:
    """That a stream is to be given a broadcast is told at the start, not to its callers."""
    app = App()

    @app.call
    async def states(broadcast: Broadcast = GIVEN) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="'broadcast' is to be given a Broadcast, and there is none"):
        async with redpoll_app(app):
            pass


async def test_middleware_in_the_order_written(redpoll_app: AppFactory) -> None:
    """One chain stands around submitting and one around handling; each may change what passes."""
    seen: list[str] = []

    class Named(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def submit(self, work: Work, proceed: Proceed) -> Any:
            seen.append(f"{self.name} submits {work.name}")
            work.options["headers"] = {**work.options.get("headers", {}), self.name: 1}
            return await proceed(work)

        async def handle(self, work: Work, proceed: Proceed) -> Any:
            assert work.task is not None
            seen.append(f"{self.name} handles {sorted(work.task.headers)}")
            work.arguments["number"] += 1
            return 10 * await proceed(work)

    app = App(middleware=[Named("outer"), Named("inner")])

    @app.task
    async def same(number: int) -> int:
        return number

    async with redpoll_app(app):
        assert await same.run(1) == 300
    assert seen == [
        "outer submits tasks:same",
        "inner submits tasks:same",
        "outer handles ['inner', 'outer']",
        "inner handles ['inner', 'outer']",
    ]


async def test_calls(redpoll_app: AppFactory) -> None:
    """A function that is called answers its caller, with the exceptions of Python; a cast has no answer."""
    app, seen = App(), []

    @app.call(target="calculator")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.call(target="calculator")
    def divide(a: int, b: int) -> float:
        seen.append((a, b))
        return a / b

    assert await add(1) == 2
    async with redpoll_app(app) as running:
        assert await add.call(1, b=4) == 5
        assert await running.bus.rpc.call("calculator", "add", {"a": 7}) == 8
        with pytest.raises(ZeroDivisionError):
            await divide.prepare(timeout=5).call(1, 0)
        await divide.cast(4, 2)
        await until(lambda: (4, 2) in seen)


async def test_broadcasts(redpoll_app: AppFactory) -> None:
    """A function is called with the bodies of the broadcasts of its subjects, converted; another may take them whole."""
    app, seen = App(), list[Any]()

    @app.on("state.*.finished")
    async def finished(state: State) -> None:
        seen.append(state)

    @app.on("state.#")
    def everything(broadcast: Broadcast = GIVEN) -> None:
        seen.append(broadcast.subject)

    async with redpoll_app(app) as running:
        await running.bus.broadcast.send({"name": "a", "number": 1}, subject="state.1.finished")
        await until(lambda: len(seen) == 2)
        await running.bus.broadcast.send(None, subject="state.1.begun")
        await until(lambda: len(seen) == 3)
    assert State("a", 1) in seen
    assert {"state.1.finished", "state.1.begun"} == {each for each in seen if isinstance(each, str)}


async def test_a_durable_listener_is_shared(redpoll_app: AppFactory) -> None:
    """Broadcasts of a durable subscription wait for the app, and are handled once, however many work."""
    seen: list[Any] = []

    def make() -> App:
        app = App()

        @app.on("news", durable="readers")
        async def read(body: int) -> None:
            seen.append(body)

        return app

    one, two = make(), make()
    async with redpoll_app(one, work=False) as running, redpoll_app(two, work=False):
        async with one.work():
            pass
        for number in range(10):
            await running.bus.broadcast.send(number, subject="news")
        async with one.work(), two.work():
            await until(lambda: len(seen) == 10)
    assert sorted(seen) == list(range(10))


async def test_a_declared_task_is_worked_on_elsewhere(redpoll_app: AppFactory) -> None:
    """A program with the signature alone submits; it does not work on that queue."""
    producer, consumer = App(), App()

    def signature(path: str, width: int = 800) -> str: ...  # type: ignore[empty-body]

    resize = producer.declare("images:resize", signature)

    @consumer.task(queue="images", name="resize")
    async def other_name(path: str, width: int = 800) -> str:
        return f"{path} {width}"

    async with redpoll_app(producer) as running:
        handle = await resize.submit("a", width=3)
        assert (await running.bus.queues.inspect("images")).consumers == 0
        with pytest.raises(TypeError, match="height"):
            await resize.submit("a", height=1)  # type: ignore[call-arg]
        async with redpoll_app(consumer):
            assert await handle.result() == "a 3"


async def test_starting_and_closing() -> None:
    """An app connects when it is entered, can be entered again, and says so where it is not."""
    app = App("memory://")

    @app.task
    async def one() -> int:
        return 1

    with pytest.raises(UsageError, match="not started"):
        await one.submit()
    for _ in range(2):
        async with app, app.work():
            assert isinstance(app.bus, Bus)
            assert await one.run() == 1
            with pytest.raises(UsageError, match="is started"):
                await app.start()
    with pytest.raises(UsageError, match="not started"):
        _ = app.bus


async def test_the_url_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app without a URL has that of REDPOLL_URL, or else a hub on this machine."""
    monkeypatch.delenv("REDPOLL_URL", raising=False)
    assert App().url == "redpoll://127.0.0.1"
    monkeypatch.setenv("REDPOLL_URL", "memory://mine")
    assert redpoll.App().url == "memory://mine"


async def test_queues_that_are_worked_on() -> None:
    """Work on some queues is on no other, and serves no calls; a name without a function is an error."""
    app = App("memory://")

    @app.task(queue="a")
    async def one() -> int:
        return 1

    @app.task(queue="b")
    async def two() -> int:
        return 2

    @app.call
    async def three() -> int:
        return 3

    async with app:
        async with app.work(["a"]):
            assert await one.run() == 1
            assert await (await two.submit()).state() == "ready"
            with pytest.raises(redpoll.NoRoute):
                await three.call()
        with pytest.raises(ConfigError, match="queues='c': is a queue without a function"):
            app.work(["c"])
        with pytest.raises(ConfigError, match="list of names"):
            app.work("a")


async def _values() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("decorate", "text"),
    [
        (lambda app: app.task(queue="")(print), "queue"),
        (lambda app: app.task(time_limit=-1)(print), "time_limit"),
        (lambda app: app.task(3), "decorate a function"),
        (lambda app: app.task("images"), "decorate a function"),
        (lambda app: app.task(retry=3)(print), "must be a Retry, not int"),
        (lambda app: app.task(dedup="key")(print), "dedup='key': must be a function, not str"),
        (lambda app: app.task(_values), "is a generator"),
        (lambda app: app.task(name="")(print), "name='': must be text, not empty"),
        (lambda app: app.task(partial(print, 1)), "name=None: must be text, not empty"),
        (lambda app: app.schedule(60), "cron=60: must be text; seconds between calls are every=60"),
        (lambda app: app.schedule(b"* * * * *"), "must be text, not bytes"),
        (lambda app: app.wait(print), "must be a coroutine: call the function"),
        (lambda _, url=3: App(url), "url=3: must be text, not int"),
        (lambda _, wrong=Middleware: App(middleware=[wrong]), "must be objects of subclasses of Middleware"),
        (lambda app: app.call(target="*")(print), "target"),
        (lambda app: app.on("")(print), "subject"),
        (lambda app: app.schedule(), "every"),
        (lambda app: app.schedule("* * * * *", every=1), "every"),
        (lambda app: app.schedule(every=0.05), "at least 0.1 seconds"),
        (lambda app: app.schedule("x"), "cron"),
        (lambda app: app.schedule("* * * * *", zone="Nowhere"), "zone"),
        (lambda app: app.schedule(every=1, missed="twice"), "missed"),
        (lambda app: app.schedule(every=1)(lambda number: number), "is scheduled, and 'number' has no default"),
        (lambda app: app.call(name="_hidden")(print), "begins with an underscore"),
        (lambda app: app.declare("resize", print), "queue:name"),
        (lambda app: [app.task(print), app.task(print)], "another function"),
        (lambda app: [app.call(print), app.call(print)], "another function"),
    ],
)
async def test_wrong_decorators(decorate: Any, text: str) -> None:
    """Impossible options are refused where the function is decorated."""
    with pytest.raises(ConfigError, match=text):
        decorate(App())


async def test_wrong_arguments_and_options() -> None:
    """They are named with the function, before anything is sent."""
    app = App()

    @app.task
    async def load(name: str, width: int = 1) -> int:
        return width

    @app.call
    async def add(number: int) -> int:
        return number

    wrong: Any = load
    for arguments, text in (
        ((), "missing a required argument: 'name'"),
        (("a", 1, 2), "too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=f"^tasks:load: {text}"):
            await wrong.submit(*arguments)
    with pytest.raises(TypeError, match=r"^tasks:load has no option 'dely', only dedup, delay,.* timeout$"):
        wrong.prepare(dely=3)
    with pytest.raises(TypeError, match=r"^app\.add has no option 'delay', only timeout,"):
        add.prepare(delay=3)  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(ConfigError, match=r"must be a function that @app\.task made a task"):
        wrong.chain("a").then(print)
    assert await load(*("a", 2)) == 2


async def test_functions_whose_arguments_cannot_be_sent_by_name() -> None:
    """Starting refuses functions with arguments that have no names, and annotations that cannot be resolved."""
    app = App("memory://")

    @app.task
    def many(*numbers: int) -> None: ...

    with pytest.raises(ConfigError, match="sent by name"):
        await app.start()
    other = App("memory://")

    @other.task
    def unknown(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Nowhere"):
        await other.start()


async def test_a_stream_of_values(redpoll_app: AppFactory) -> None:
    """The values of an asynchronous generator come one by one, converted; leaving the loop ends it at its server."""
    app, ended = App(), asyncio.Event()

    @app.call
    async def states(names: list[str], first: int = 0) -> AsyncIterator[State]:
        try:
            for number, name in enumerate(names, first):
                yield State(name, number)
            if names == ["bad"]:
                raise LookupError("bad")
        finally:
            ended.set()

    assert [each async for each in states(["a"])] == [State("a", 0)]
    async with redpoll_app(app):
        ended.clear()
        assert [each async for each in states.stream(["a", "b"], first=3)] == [State("a", 3), State("b", 4)]
        with pytest.raises(LookupError, match="bad"):
            assert [each async for each in states.stream(["bad"])]
        ended.clear()
        async with aclosing(states.prepare(timeout=60).stream(["a"] * 1_000)) as stream:
            assert await anext(stream) == State("a", 0)
        await asyncio.wait_for(ended.wait(), 10)
        with pytest.raises(BadPayload, match=r"\$\.first"):
            assert [each async for each in states.stream([], first="no")]  # type: ignore[arg-type]  # wrong on purpose


async def test_middleware_around_a_stream(redpoll_app: AppFactory) -> None:
    """Middleware on both sides may look at a stream's values and change them, and its end reaches the generators within."""
    seen: list[Any] = []

    class Doubling(Middleware):
        async def submit(self, work: Work, proceed: Proceed) -> Any:
            seen.append(("submit", work.kind, work.name, work.arguments))
            work.arguments["below"] += 1
            return self.doubled(await proceed(work), "submit")

        async def handle(self, work: Work, proceed: Proceed) -> Any:
            seen.append(("handle", work.kind, work.name, work.arguments))
            return self.doubled(await proceed(work), "handle")

        async def doubled(self, values: AsyncGenerator[int, None], where: str) -> AsyncGenerator[int, None]:
            try:
                async with aclosing(values):
                    async for each in values:
                        yield 2 * each
            finally:
                seen.append((where, "ended"))

    app = App(middleware=[Doubling()])

    @app.call
    async def count(below: int) -> AsyncIterator[int]:
        try:
            for each in range(below):
                yield each
        finally:
            seen.append("ended")

    async with redpoll_app(app):
        assert [each async for each in count.stream(3)] == [0, 4, 8, 12]
        work = ("stream", "app.count", {"below": 4})
        assert seen == [("submit", *work), ("handle", *work), "ended", ("handle", "ended"), ("submit", "ended")]
        seen.clear()
        async with aclosing(count.stream(1_000)) as values:
            assert await anext(values) == 0
        await until(lambda: len(seen) == 5)
        assert {"ended", ("handle", "ended"), ("submit", "ended")} <= {*seen[2:]}


async def test_keys_and_middleware_of_map(redpoll_app: AppFactory) -> None:
    """Each task of a map goes through the middleware and has its own key; leaving it leaves tasks of others alone."""
    seen: list[Any] = []

    class Noting(Middleware):
        async def submit(self, work: Work, proceed: Proceed) -> Any:
            seen.append(work.arguments)
            return await proceed(work)

    app, begun = App(middleware=[Noting()]), list[int]()

    @app.task(dedup=lambda number, **_: f"key {number}")
    async def once(number: int, more: int = 0) -> int:
        begun.append(number)
        return number + more

    async with redpoll_app(app) as running:
        assert [each async for each in once.map([1, 2, 1], more=5)] == [6, 7, 6]
        assert (sorted(begun), seen[-1]) == ([1, 2], {"number": 1, "more": 5})
        other = await once.prepare(delay=60).submit(7)
        async with aclosing(once.map([1, 7, 8])) as results:
            assert await anext(results) == 6
        await running.time.advance(60)
        assert await other.result() == 7
        with pytest.raises(UsageError, match="one dedup key would make one task of all"):
            await anext(once.prepare(dedup="k").map([1]))


async def test_handlers_that_finish_while_the_app_closes_use_it() -> None:
    """While `close` waits for a handler, what it submits is sent, and its result is recorded; then the app is not started."""
    app = App("memory://closing")
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(queue="firsts")
    async def first() -> str:
        begun.set()
        await go.wait()
        await second.submit()
        return "done"

    @app.task(queue="seconds")
    async def second() -> None:
        """Do nothing."""

    async with redpoll.connect("memory://closing") as bus:
        await app.start()
        async with app.work(["firsts"]):
            handle = await bus.tasks.submit(["first", {}], "firsts")
            await begun.wait()
            closing = asyncio.create_task(app.close(drain=30))
            await turns()
            assert not closing.done()
            go.set()
            await closing
        assert await handle.result(timeout=30) == "done"
        assert (await bus.queues.inspect("seconds")).ready == 1
    with pytest.raises(UsageError, match="not started"):
        app.bus  # noqa: B018


async def test_what_handles_tasks_outlives_the_close_of_its_app() -> None:
    """On a bus that is not the app's, tasks that come after the app was closed are no unreadable ones: they are done."""
    app = App()

    @app.task
    def double(number: int) -> int:
        return 2 * number

    async with redpoll.connect("memory://") as bus:
        await app.start(bus)
        async with app.work():
            await app.close()
            assert await bus.tasks.run(["double", {"number": 2}], timeout=30) == 4
