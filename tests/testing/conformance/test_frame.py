"""The frame of the conformance suite: what fails fails, what is ruled out is skipped, and nothing is left."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from redpoll.testing import conformance
from redpoll.testing.conformance import Behaviour, NotCovered, Place, Setting
from redpoll.testing.conformance.frame import behaviour

MEMORY = Setting("memory://", patience=0.1)


def test_each_behaviour_says_what_it_is() -> None:
    """Behaviours have numbers of their own, in order, and one line each; those of kiwiPy and oslo.messaging are complete."""
    found = conformance.behaviours()
    assert [each.id for each in found] == sorted(each.id for each in found)
    assert all(re.fullmatch(r"[A-Z]+-\d\d", each.id) and each.text.endswith(".") for each in found)
    theirs = {
        f"{kind}-{number:02}" for kind, last in (("K", 37), ("KX", 10), ("O", 23)) for number in range(1, last + 1)
    }
    assert theirs <= {each.id for each in found}
    areas = [conformance.behaviours(area) for area in ("engine", "broadcast", "notifications", "rpc", "tasks")]
    assert {each.id for area in areas for each in area} == {each.id for each in found}
    assert all(each.id.startswith("E-") for each in areas[0])
    with pytest.raises(ValueError, match="two behaviours E-01"):
        behaviour("E-01")(_nothing)


def test_a_failure_is_a_failure() -> None:
    """A behaviour that does not hold raises, and its buses are closed all the same."""
    places: list[Place] = []

    async def check(place: Place) -> None:
        places.append(place)
        await place.queue(await place.engine())
        await place.until(lambda: False)

    with pytest.raises(AssertionError, match="it did not happen in time"):
        Behaviour("X-01", "It fails.", check).run(MEMORY)
    assert all(bus.engine.status.state.value == "closed" for bus in places[0]._buses)


def test_what_an_engine_cannot_do_is_skipped() -> None:
    """A behaviour whose capability the engine lacks is not tried, and says which."""

    class Lesser(Setting):
        def connect(self, place: Place) -> Any:
            bus: Any = super().connect(place)
            bus.engine.capabilities = dataclasses.replace(bus.capabilities, cancel=False, results="live", priorities=1)
            return bus

    for name, value in (("cancel", "False"), ("results", "'live'"), ("priorities", "1")):
        with pytest.raises(NotCovered, match=f"X-02: memory:// has {name}={value}"):
            Behaviour("X-02", "It is ruled out.", _nothing, (name,)).run(Lesser("memory://"))


def test_a_worker_is_killed_where_the_engine_lets() -> None:
    """An engine that cannot be aborted rules out what needs a killed worker."""

    async def check(place: Place) -> None:
        bus = await place.open()
        engine, bus.engine = bus.engine, object()  # type: ignore[assignment]
        try:
            await place.setting.kill(bus)
        finally:
            bus.engine = engine

    with pytest.raises(NotCovered, match="does not know how to kill"):
        Behaviour("X-03", "It kills.", check).run(MEMORY)


def test_a_table_says_what_was_seen() -> None:
    """What engines did is a table in Markdown."""
    rows = [Behaviour("X-01", "It works.", _nothing), Behaviour("X-02", "It streams.", _nothing)]
    assert conformance.table({"memory": {"X-01": "yes", "X-02": "no"}, "amqp": {"X-01": "yes"}}, rows) == (
        "| | behaviour | memory | amqp |\n|---|---|---|---|\n| X-01 | It works. | yes | yes |\n"
        "| X-02 | It streams. | no |  |\n"
    )


def test_what_is_observed_is_said() -> None:
    """Each behaviour is said to hold, not to hold, or what rules it out."""

    async def fail(place: Place) -> None:
        raise AssertionError

    async def rule_out(place: Place) -> None:
        raise NotCovered("X-03: no such thing")

    rows = [Behaviour(f"X-0{number}", "It is.", check) for number, check in enumerate((_nothing, fail, rule_out), 1)]
    assert conformance.observe(MEMORY, rows) == {"X-01": "yes", "X-02": "no", "X-03": "not covered: no such thing"}


async def _nothing(place: Place) -> None:
    """Do nothing."""
