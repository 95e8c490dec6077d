"""Chains and groups of an app's functions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import redpoll
from redpoll import GIVEN, App, Hub, Retry
from redpoll.bus import Task
from redpoll.errors import ConfigError, RemoteError, TaskCancelled, UsageError
from redpoll.testing.apps import AppFactory

pytestmark = pytest.mark.asyncio


@dataclass
class Picture:
    """A value that passes a pipeline."""

    name: str
    width: int


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
async def test_each_function_is_given_the_result_before_it(redpoll_app: AppFactory, serializer: str) -> None:
    """The result of a task is the first argument of the next one, converted; other arguments are given as ever."""
    app = App()

    @app.task(queue="network")
    async def load(name: str, width: int = 800) -> Picture:
        return Picture(name, width)

    @app.task(queue="computing")
    def scale(picture: Picture, factor: float) -> Picture:
        assert isinstance(picture, Picture)
        return Picture(picture.name, int(picture.width * factor))

    @app.task(queue="network")
    async def store(picture: Picture, *, to: str = "here", task: Task = GIVEN) -> tuple[str, int, str, int]:
        return (picture.name, picture.width, to, len(task.results))

    async with redpoll_app(app, serializer=serializer) as running:
        chain = load.chain("a.png").then(scale, 0.5).then(store, to="there")
        assert await chain.run() == ("a.png", 400, "there", 1)
        handle = await load.chain("b.png", width=2).then(store).submit()
        assert await handle.result() == ("b.png", 2, "here", 1)
        assert [each[:2] for each in running.submitted] == [
            ("network:load", {"name": "a.png"}),
            ("computing:scale", {"factor": 0.5}),
            ("network:store", {"to": "there"}),
            ("network:load", {"name": "b.png", "width": 2}),
            ("network:store", {}),
        ]
        with pytest.raises(TypeError):
            load.chain("a", 1, 2)  # type: ignore[call-arg]  # wrong on purpose
        with pytest.raises(TypeError):
            load.chain("a").then(scale, 0.5, 0.5)  # type: ignore[call-arg]  # wrong on purpose
        with pytest.raises(TypeError, match="has no option 'timeout'"):
            load.prepare(timeout=1).chain("a")


async def test_a_group_and_what_comes_after_it(redpoll_app: AppFactory) -> None:
    """A group gives its results in order, or them to the next function as a list; chains may be its parts."""
    app = App()

    @app.task
    async def load(number: int) -> Picture:
        if number < 0:
            raise LookupError(str(number))
        return Picture("p", number)

    @app.task
    async def double(picture: Picture) -> Picture:
        return Picture(picture.name, 2 * picture.width)

    @app.task
    async def add(pictures: list[Picture], more: int = 0) -> int:
        return sum(each.width for each in pictures) + more

    @app.task
    async def count(pictures: list[Picture | None]) -> list[bool]:
        return [each is not None for each in pictures]

    async with redpoll_app(app):
        assert await app.group(load.chain(each) for each in range(3)).run() == [Picture("p", each) for each in range(3)]
        assert await app.group(load.chain(each).then(double) for each in range(4)).then(add, more=5).run() == 17
        handles = await app.group([load.chain(1), load.chain(2).then(double)]).submit()
        assert [(await each.result()).width for each in handles] == [1, 4]
        nested = app.group([app.group([load.chain(1), load.chain(2)]).then(add), app.group([load.chain(3)]).then(add)])
        assert await nested.run() == [3, 3]
        with pytest.raises(RemoteError, match="LookupError: -1"):
            await app.group([load.chain(1), load.chain(-1)]).run()
        with pytest.raises(TaskCancelled, match="which failed: LookupError: -1"):
            await app.group([load.chain(1), load.chain(-1)]).then(add).run()
        found = await app.group([load.chain(-1), load.chain(1)], collect=True).run()
        assert [type(each) for each in found] == [RemoteError, Picture]
        assert await app.group([load.chain(-1), load.chain(1)], collect=True).then(count).run() == [False, True]
        one = load.chain(1)
        for wrong in ([], [one, one], [load]):
            with pytest.raises(ConfigError):
                app.group(wrong)  # type: ignore[arg-type]  # wrong on purpose


async def test_parts_of_two_apps(redpoll_app: AppFactory) -> None:
    """Functions of apps on two buses are in no chain and no group together."""
    one, two = App(), App("memory://two")

    @one.task
    async def load() -> int:
        return 1

    @two.task
    async def store(number: int) -> None: ...

    chain = load.chain().then(store)
    async with redpoll_app(one):
        with pytest.raises(UsageError, match="the app is not started"):
            await chain.submit()
        async with two:
            with pytest.raises(
                UsageError, match=r"tasks of .*memory://.* and of .*memory://.* are in one chain or group"
            ):
                await chain.submit()


async def test_keys_that_a_function_makes(redpoll_app: AppFactory) -> None:
    """A chain has no arguments to make them of, and says so; the last task has one by `prepare`, or none."""
    app = App()

    @app.task
    async def load() -> int:
        return 1

    @app.task(dedup=lambda number: f"key {number}")
    async def store(number: int) -> int:
        return number

    async with redpoll_app(app) as running:
        refusal = r"tasks:store makes keys of its arguments.*prepare\(dedup="
        with pytest.raises(UsageError, match=refusal):
            store.chain(1)
        with pytest.raises(UsageError, match=refusal):
            load.chain().then(store)
        kept = load.chain().then(store.prepare(dedup="k"))
        assert (await kept.submit()).id == (await kept.submit()).id
        handles = await app.group(store.prepare(dedup=None).chain(each) for each in (1, 1)).submit()
        assert len({each.id for each in handles}) == 2
        await running.drain()


async def test_a_result_that_does_not_fit_the_next_function(redpoll_app: AppFactory) -> None:
    """It ends that task as a dead letter, like any payload that does not fit."""
    app = App()

    @app.task
    async def name() -> str:
        return "text"

    @app.task
    async def square(number: int) -> int:
        return number * number

    async with redpoll_app(app) as running:
        handle = await name.chain().then(square).submit()  # type: ignore[arg-type]  # wrong on purpose
        await running.drain()
        with pytest.raises(redpoll.DeadLettered, match=r"Expected `int`, got `str`"):
            await handle.result()


async def test_tries_of_a_task_before_another(redpoll_app: AppFactory) -> None:
    """A task that is tried again holds up what comes after it; time limits, delays and keys hold in a chain."""
    app, tries = App(), list[int]()

    @app.task(retry=Retry(times=2, on=OSError, backoff=5))
    async def load(task: Task = GIVEN) -> int:
        tries.append(task.tries)
        if task.tries < 3:
            raise OSError("not yet")
        return 7

    @app.task
    async def store(number: int) -> int:
        return number

    async with redpoll_app(app) as running:
        chain = load.prepare(delay=60).chain().then(store.prepare(dedup="k"))
        handle = await chain.submit()
        assert (await chain.submit()).id == handle.id
        await running.time.advance(59)
        assert tries == []
        await running.drain()
        assert (tries, await handle.result()) == ([1, 2, 3], 7)
        slow = asyncio.ensure_future(load.prepare(delay=60).chain().then(store).run(timeout=10))
        await asyncio.sleep(0)
        await running.time.advance(11)
        with pytest.raises(TimeoutError):
            await slow


async def test_a_group_with_large_results_over_a_hub(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Results beyond what is sent at a time, and what a hub keeps in memory, reach the task after the group, in order."""
    app = App()

    @app.task(queue="parts")
    async def make(number: int) -> bytes:
        return bytes([number]) * 700_000

    @app.task(queue="joins")
    def join(parts: list[bytes]) -> list[int]:
        assert {len(each) for each in parts} == {700_000}
        return [each[0] for each in parts]

    async with Hub(tmp_path_factory.mktemp("hub"), port=0) as hub, redpoll.connect(hub.url) as bus:
        await app.start(bus)
        async with app.work(["parts"]):
            joined = await app.group(make.chain(number) for number in range(20)).then(join).submit()
            while (await bus.queues.inspect("joins")).ready == 0:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.01)
        # Most of it is on disk alone by now.
        async with app.work(["joins"]):
            assert await joined.result(timeout=30) == list(range(20))
        await app.close()
