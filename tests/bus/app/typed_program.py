"""A program that mypy checks with the tests: right arguments of an app's functions pass, and wrong ones are seen.

Each line of `wrong` is an error, or mypy complains of the comment that silences it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import assert_type

from redpoll import GIVEN, App, Retry
from redpoll.bus import Handle, Task

app = App("memory://")


@dataclass
class Report:
    path: str
    width: int


@app.task(queue="images", retry=Retry(times=3, on=OSError, backoff=2, jitter=0), time_limit=60)
async def resize(path: str, width: int = 800) -> Report:
    return Report(path, width)


@app.task
def scale(report: Report, factor: float) -> Report:
    return report


@app.task
async def join(reports: list[Report], title: str = "", task: Task = GIVEN) -> str:
    return title


@app.task
async def join_some(reports: list[Report | None]) -> int:
    return 0


@app.schedule(every=60)
async def tick() -> None: ...


@app.call
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.call(target="x")
def version() -> str:
    return "1"


@app.call
async def primes(below: int) -> AsyncIterator[int]:
    yield below


def signature(path: str) -> Report:
    raise NotImplementedError


declared = app.declare("images:resize", signature)


async def right() -> None:
    assert_type(await resize("a"), Report)
    assert_type(scale(Report("a", 1), 0.5), Report)
    task = await resize.submit("a", width=2)
    assert_type(task, Handle[Report])
    assert_type(await task.result(), Report)
    assert_type(await resize.run("a"), Report)
    assert_type(await resize.prepare(delay=3).run("a"), Report)
    async for each in resize.map(["a"], width=3):
        assert_type(each, Report)
    assert_type(await add.call(1, b=2), int)
    assert_type(await version.call(), str)
    async for number in primes.stream(below=3):
        assert_type(number, int)
    assert_type(await (await declared.submit("x")).result(), Report)
    assert_type(await resize.chain("a").then(scale, 0.5).run(), Report)
    assert_type(await resize.chain("a").then(scale, factor=0.5).submit(), Handle[Report])
    assert_type(await app.group(resize.chain(p) for p in "ab").run(), list[Report])
    assert_type(await app.group([resize.chain("a")]).then(join, title="x").run(), str)
    assert_type(await app.group([resize.chain("a")], collect=True).then(join_some).run(), int)
    assert_type(await app.group([resize.chain("a")], collect=True).run(), list[Report | BaseException])


def threads() -> None:
    assert_type(app.wait(resize.submit("a")), Handle[Report])
    assert_type(app.wait(add.call(1)), int)


async def wrong() -> None:
    await resize.submit(1)  # type: ignore[arg-type]
    await resize.submit("a", height=2)  # type: ignore[call-arg]
    await resize.run()  # type: ignore[call-arg]
    resize.prepare(nothing=1)  # type: ignore[call-arg]
    await add.call("x")  # type: ignore[arg-type]
    primes.stream(above=1)  # type: ignore[call-arg]
    await declared.submit(3)  # type: ignore[arg-type]
    resize.chain("a").then(scale)  # type: ignore[call-arg]
    resize.chain("a").then(scale, "x")  # type: ignore[arg-type]
    resize.chain("a").then(add)  # type: ignore[arg-type]
    resize.chain(1)  # type: ignore[arg-type]
    app.group([resize.chain("a")]).then(scale, 0.5)  # type: ignore[arg-type]
    app.group([resize]).run()  # type: ignore[arg-type, unused-coroutine]
    app.wait(resize.submit(2))  # type: ignore[arg-type]
    Retry(factor=2)  # type: ignore[call-arg]
    App(extra="no")  # type: ignore[arg-type]
