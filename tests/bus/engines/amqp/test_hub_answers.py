"""What an engine on RabbitMQ logs where a hub beside it refuses what it is told: without either."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redpoll.bus import Envelope, Receipt
from redpoll.bus.engines.amqp.recorded import RecordedDelivery
from redpoll.bus.engines.amqp.schedules import Schedules
from redpoll.bus.envelope import encode
from redpoll.errors import Closed, NotAuthorized, NotConfirmed, RedpollError

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("error", "logged"),
    [(Closed("bus"), []), (NotAuthorized("no more", "h:1"), ["the hub did not record the end of task 1 of 'q': "])],
)
async def test_an_end_that_the_hub_refuses_is_logged(
    error: RedpollError, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The message stays with the channel; unless the hub was closed, a warning says why."""
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    done.set_exception(error)
    delivery = cast("Any", SimpleNamespace(id="1", queue="q"))
    assert await RecordedDelivery._answer(delivery, done) is None
    assert [record.getMessage() for record in caplog.records] == [text + str(error) for text in logged]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (NotConfirmed(None, "the connection was lost"), {"delay": 1.0, "exclude": False}),
        (NotAuthorized("no more", "h:1"), {"delay": 0.0, "exclude": True}),
    ],
)
async def test_a_task_of_a_schedule_that_is_not_taken_is_logged(
    error: RedpollError, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes back to the hub, for a while or for another program, and the log says why."""
    rejected: list[dict[str, Any]] = []
    envelope = Envelope("raw", bytes(encode(Envelope("raw", b"body"))), {"redpoll": ["q", 0, False, True]})
    delivery = cast(
        "Any", SimpleNamespace(envelope=envelope, left=None, id="1", reject=lambda **how: rejected.append(how))
    )

    async def publish(*_: object, **options: object) -> Any:
        assert options["queue"] == "q"
        raise error

    hub = cast("Any", SimpleNamespace(publish=lambda *_, **__: Receipt("store", 1)))
    with caplog.at_level(logging.INFO, "redpoll.bus"):
        await Schedules(hub)._carry(delivery, publish, lambda: True)
    assert rejected == [how]
    (record,) = caplog.records
    assert record.getMessage() == f"a task of a schedule waits: {error}"


@pytest.mark.parametrize(
    "meta", [None, {"redpoll": None}, {"redpoll": ["q", 0, True]}, {"redpoll": ["q", 0, False, True]}]
)
async def test_a_task_of_a_schedule_that_is_none_is_a_dead_letter(
    meta: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What any client may put into the hub's queue of schedules, and no program can read, is told once and kept apart."""
    rejected: list[dict[str, Any]] = []
    delivery = cast(
        "Any",
        SimpleNamespace(
            envelope=Envelope("raw", b"no envelope", meta), left=None, id="1", reject=lambda **how: rejected.append(how)
        ),
    )
    await Schedules(cast("Any", None))._carry(delivery, cast("Any", None), lambda: True)
    assert [each["requeue"] for each in rejected] == [False]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"a task of a schedule is a dead letter of the hub's queue 'amqp.scheduled': {rejected[0]['reason']}"
    )
