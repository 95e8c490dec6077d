"""Typed payloads: arguments and results are checked and converted by their annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import numpy as np
import pydantic
import pytest

from redpoll import App, BadPayload, ConfigError, DeadLettered, EncodeError, RemoteError
from redpoll.bus.app import shapes
from redpoll.bus.app.shapes import Shape
from redpoll.testing.apps import AppFactory
from tests.bus.tasks.support import until


class Colour(Enum):
    """An enum."""

    RED = "red"


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float


class Row(TypedDict):
    """A dict with known keys."""

    name: str
    size: int


class Pair(NamedTuple):
    """A named tuple that holds a dict with known keys."""

    row: Row
    number: int


@dataclass
class Report:
    """A dataclass that holds one of each."""

    at: datetime
    id: UUID
    colour: Colour
    point: Point
    row: Row
    data: bytes
    price: Decimal
    days: set[date] = field(default_factory=set)
    number: int | str | None = None


@dataclass
class Node:
    """A dataclass that holds more of its kind, and other containers."""

    name: str
    inner: Node | None = None
    rows: list[Row] = field(default_factory=list)
    points: dict[str, tuple[int, Row]] = field(default_factory=dict)


class Model(pydantic.BaseModel):  # type: ignore[misc, unused-ignore]
    """A model of pydantic."""

    name: str
    at: datetime
    inner: list[int] = []


REPORT = Report(
    datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    UUID(int=7),
    Colour.RED,
    Point(1, 2.5),
    {"name": "a", "size": 1},
    b"\x00\xff",
    Decimal("1.10"),
    {date(2026, 1, 1)},
    "text",
)


def shape(function: Any, extra: Any = "ignore") -> Shape:
    """Return the shape of a function."""
    return Shape(function, "q:f", extra)


@pytest.mark.asyncio
@pytest.mark.parametrize("serializer", ["msgpack", "json", "pickle"])
async def test_values_arrive_with_their_types(redpoll_app: AppFactory, serializer: str) -> None:
    """Arguments and results arrive as what their annotations say, by any serializer of the bus."""
    app = App()

    @app.task
    async def echo(report: Report, more: Sequence[Report] = (), *, wait: timedelta | None = None) -> list[Report]:
        assert type(report) is Report
        assert wait == timedelta(seconds=3)
        return [report, *more]

    @app.call
    async def same(model: Model, keys: dict[int, str]) -> tuple[Model, dict[int, str]]:
        assert type(model) is Model
        return model, keys

    also = [serializer] if serializer == "pickle" else []
    async with redpoll_app(app, serializer=serializer, also=also):
        assert await echo.run(REPORT, [REPORT], wait=timedelta(seconds=3)) == [REPORT, REPORT]
        model = Model(name="a", at=REPORT.at, inner=[1])
        assert await same.call(model, {3: "c"}) == (model, {3: "c"})


@pytest.mark.asyncio
@pytest.mark.parametrize("serializer", ["msgpack", "json"])
async def test_arrays(redpoll_app: AppFactory, serializer: str) -> None:
    """Arrays of numbers are carried as their buffers; objects, whose pickles would be, are refused."""
    app = App()

    @app.task
    async def double(array: np.ndarray) -> np.ndarray:
        return 2 * array

    async with redpoll_app(app, serializer=serializer):
        array = np.arange(6, dtype="<i2").reshape(2, 3)
        found = await double.run(array)
        assert found.dtype == array.dtype
        assert (found == 2 * array).all()
        with pytest.raises(EncodeError, match="ndarray cannot be sent"):
            await double.submit(np.array([object()]))


def test_arrays_that_are_none() -> None:
    """A buffer that does not fit its shape, and a type of objects, are refused."""

    def take(array: np.ndarray) -> None: ...

    for wrong in ([["<i2", [3], b"\x00"]], ["|O", [1], b"\x00" * 8], "no", ["<i2", [1], 3]):
        with pytest.raises(BadPayload, match=r"at `\$.array`"):
            shape(take).arguments({"array": wrong})


@pytest.mark.asyncio
async def test_a_call_that_does_not_fit_is_refused_to_its_caller(redpoll_app: AppFactory) -> None:
    """The caller gets `BadPayload` with the path of the field, and the handler is not called."""
    app = App()

    @app.call
    async def store(reports: list[Model]) -> None:
        raise AssertionError

    async with redpoll_app(app) as running:
        with pytest.raises(BadPayload, match=r"app.store: Expected"):
            await store.call(3)  # type: ignore[arg-type]
        with pytest.raises(RemoteError, match=r"reports\[1\]`") as caught:
            await running.bus.rpc.call(
                "app", "store", {"reports": [{"name": "a", "at": "2026-01-01"}, {"name": 3}]}, timeout=5
            )
        assert caught.value.kind == "BadPayload"
        assert "name: Input should be a valid string; at: Field required" in caught.value.text
        assert "Traceback" not in str(caught.value.traceback)


@pytest.mark.asyncio
async def test_a_task_that_does_not_fit_is_a_dead_letter(redpoll_app: AppFactory) -> None:
    """Once all workers have rejected it, it is a dead letter with the path, and can be redriven."""
    old, new = App(), App()
    got: list[Any] = []

    @old.task(name="store")
    async def store_old(size: int) -> None:
        raise AssertionError

    @new.task(name="store")
    async def store_new(size: int | str) -> str:
        got.append(size)
        return "stored"

    async with redpoll_app(old) as running:
        bus = running.bus
        handle = await bus.tasks.submit(["store", {"size": "large"}])
        other = await bus.tasks.submit(["unknown", {}])
        strange = await bus.tasks.submit(7)
        await running.drain()
        for each, text in ((handle, r"BadPayload.*Expected `int`, got `str` - at `\$.size`"), (other, "tasks:unknown")):
            with pytest.raises(DeadLettered, match=text):
                await each.result()
        with pytest.raises(DeadLettered, match="expected a list"):
            await strange.result()
        # Another worker knows the newer shape.
        async with redpoll_app(new):
            (again,) = await bus.queues.redrive("tasks", [handle.id])
            await running.drain()
            assert await bus.tasks.handle(again).result() == "stored"
            # By way of the old one or not: none is lost.
            handles = [await bus.tasks.submit(["store", {"size": "x"}]) for _ in range(10)]
            await running.drain()
            assert [await each.result() for each in handles] == ["stored"] * 10
    assert got == ["large", *"x" * 10]


@pytest.mark.asyncio
async def test_a_broadcast_that_does_not_fit(redpoll_app: AppFactory) -> None:
    """It does not reach the function, and the next one does."""
    app, seen = App(), []

    @app.on("n")
    async def take(number: int) -> None:
        seen.append(number)

    async with redpoll_app(app) as running:
        await running.bus.broadcast.send("x", subject="n")
        await running.bus.broadcast.send(2, subject="n")
        await until(lambda: seen)
    assert seen == [2]


@pytest.mark.asyncio
async def test_a_result_that_does_not_fit(redpoll_app: AppFactory) -> None:
    """The submitter gets `BadPayload` for a result that is not what its own annotation says."""
    producer, consumer = App(), App()

    def signature() -> int: ...  # type: ignore[empty-body]

    wanted = producer.declare("tasks:give", signature)

    @consumer.task
    async def give() -> str:
        return "text"

    async with redpoll_app(producer), redpoll_app(consumer):
        with pytest.raises(BadPayload, match="tasks:give: Expected `int`, got `str`"):
            await wanted.run()


@pytest.mark.asyncio
async def test_running_inline(redpoll_app: AppFactory) -> None:
    """`run` calls a task in the test, with the real conversion of its payload."""
    app = App()

    @app.task
    async def name(report: Report) -> Point:
        assert type(report) is Report
        return report.point

    async with redpoll_app(app) as running:
        assert await running.run(name, REPORT) == Point(1, 2.5)
        with pytest.raises(BadPayload, match="report"):
            await running.run(name, 3)
        assert running.submitted == []


def test_unknown_arguments() -> None:
    """They are ignored, or refused where the app says so; missing ones are refused."""

    def take(a: int, b: int = 2) -> None: ...

    assert shape(take).arguments({"a": 1, "c": 3}) == {"a": 1}
    with pytest.raises(BadPayload, match="unknown field `c`"):
        shape(take, "refuse").arguments({"a": 1, "c": 3})
    with pytest.raises(BadPayload, match="required field `a`"):
        shape(take).arguments({"b": 1})
    for wrong in (None, [1], "text"):
        with pytest.raises(BadPayload, match="Expected `object`"):
            shape(take).arguments(wrong)


class Own:
    """A class that nothing knows."""


def test_types_that_cannot_be_sent() -> None:
    """A value of an unknown class is not sent, and one that was is not made of what arrived."""

    def take(own: Own) -> Own: ...  # type: ignore[empty-body]

    with pytest.raises(EncodeError, match="Own cannot be sent"):
        shape(take).to_wire({"own": Own()})
    with pytest.raises(BadPayload, match=r"expected Own, got dict - at `\$.own`"):
        shape(take).arguments({"own": {}})

    def mixed(own: int | Own) -> None: ...

    with pytest.raises(ConfigError, match="cannot be used"):
        shape(mixed)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that MessagePack carries pass unchanged; an annotation that needs more is an error that names the extra."""
    monkeypatch.setattr(shapes, "msgspec", None)

    def plain(a: int, b: list[dict[str, Any]] | None = None, *, c: bytes = b"") -> str: ...  # type: ignore[empty-body]

    made = shape(plain)
    assert made.to_wire({"a": 1}) == {"a": 1}
    assert made.arguments({"a": 1, "c": b"x", "d": 4}) == {"a": 1, "c": b"x"}
    assert made.result("text") == "text"
    for wrong, text in (({}, "missing argument 'a'"), (3, "by name, got int")):
        with pytest.raises(BadPayload, match=text):
            made.arguments(wrong)
    with pytest.raises(BadPayload, match="unknown argument 'd'"):
        shape(plain, "refuse").arguments({"a": 1, "d": 4})

    def typed(report: list[Report]) -> None: ...

    with pytest.raises(ConfigError, match=r"redpoll\[typed\]"):
        shape(typed)


def test_unknown_fields_at_any_depth() -> None:
    """With "refuse" a field that a dataclass or a typed dict does not have is refused with its path, else it is ignored."""

    def take(node: Node, pairs: list[Pair] | None = None, named: Annotated[Row | None, "said"] = None) -> None: ...

    row = {"name": "a", "size": 1}
    whole: dict[str, Any] = {
        "node": {"name": "n", "inner": {"name": "m", "inner": None}, "rows": [row], "points": {"p": [1, row]}},
        "pairs": [[row, 1]],
        "named": row,
    }
    checked = shape(take, "refuse")
    assert checked.arguments(whole)["node"].inner == Node("m")
    more = {**row, "colour": "red"}
    for changed, path in (
        ({"node": {**whole["node"], "more": 1}}, "`more` - at `$.node`"),
        (
            {"node": {**whole["node"], "inner": {"name": "m", "inner": {"name": "k", "x": 1}}}},
            "`x` - at `$.node.inner.inner`",
        ),
        ({"node": {**whole["node"], "rows": [row, more]}}, "`colour` - at `$.node.rows[...]`"),
        ({"node": {**whole["node"], "points": {"p": [1, more]}}}, "`colour` - at `$.node.points[...][...]`"),
        ({"pairs": [[more, 1]]}, "`colour` - at `$.pairs[...][...]`"),
        ({"named": more}, "`colour` - at `$.named`"),
    ):
        values = {**whole, **changed}
        with pytest.raises(BadPayload, match=re.escape(f"Object contains unknown field {path}")):
            checked.arguments(values)
        assert shape(take).arguments(values)["node"].name == "n"
