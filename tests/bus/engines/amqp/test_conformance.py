"""The behaviours of every engine, over RabbitMQ."""

from __future__ import annotations

from functools import partial

import pytest

from redpoll.testing import conformance
from tests.bus.engines.hub.support import running
from tests.rabbitmq import Broker
from tests.testing.conformance.test_table import AMQP_COLUMNS, WITH_HUB, Restarting, on_page, restart

# One restarts the server.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

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
    again = partial(restart, rabbitmq.server)
    setting = Restarting(rabbitmq.url, face=AMQP_COLUMNS[title], patience=20.0, again=again)
    assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[title][behaviour.id]


#: What RabbitMQ lacks and a hub adds, and what is done by other means then.
ADDED = {"E-11", "E-14", "E-20", "E-22", "E-40", "T-01", "T-03", "T-08", "R-11"}
OTHERWISE = {
    "E-01", "E-02", "E-06", "E-10", "E-12", "E-16", "E-17", "E-18", "E-21", "E-28", "E-32", "E-36", "E-38",
}  # fmt: skip


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(each, marks=[] if each.id in ADDED | OTHERWISE else [pytest.mark.nightly], id=str(each))
        for each in conformance.behaviours()
    ],
)
def test_behaviours_with_a_hub(behaviour: conformance.Behaviour, rabbitmq: Broker) -> None:
    """What each engine does, RabbitMQ with a hub beside it does as the page of conformance says."""
    with running() as hub:
        again = partial(restart, rabbitmq.server)
        setting = Restarting(rabbitmq.url, {"results": hub.url}, patience=20.0, again=again)
        assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[WITH_HUB][behaviour.id]
