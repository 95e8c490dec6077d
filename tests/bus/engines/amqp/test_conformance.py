"""The behaviours of every engine, over RabbitMQ."""

from __future__ import annotations

import pytest

from redpoll.testing import conformance
from tests.rabbitmq import Broker
from tests.testing.conformance.test_table import AMQP_COLUMNS, on_page

pytestmark = pytest.mark.broker

#: Those that a push tries: the engine itself, and what it does for patterns that others do not need.
PUSHED = {each.id for each in conformance.behaviours("engine")} | {"K-04", "KX-06", "O-09", "R-14", "N-07", "B-06"}


def cases() -> list[object]:
    """Return each behaviour with each face; most are for the night."""
    return [
        pytest.param(
            behaviour,
            title,
            marks=() if AMQP_COLUMNS[title] == "async" and behaviour.id in PUSHED else pytest.mark.nightly,
            id=f"{behaviour}-{AMQP_COLUMNS[title]}",
        )
        for behaviour in conformance.behaviours()
        for title in AMQP_COLUMNS
    ]


@pytest.mark.parametrize(("behaviour", "title"), cases())
def test_behaviours(behaviour: conformance.Behaviour, title: str, rabbitmq: Broker) -> None:
    """What each engine does, RabbitMQ does as the page of conformance says, for asyncio and for threads."""
    setting = conformance.Setting(rabbitmq.url, face=AMQP_COLUMNS[title], patience=20.0)
    assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[title][behaviour.id]
