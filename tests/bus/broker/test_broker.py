"""The broker against its model: crashing workers and brokers, late answers, moving time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.bus.broker.model import BrokerModel


def test_every_confirmed_task_has_one_place_and_one_outcome() -> None:
    """Whatever workers, the store and time do, no task is lost, is begun by two, or ends twice."""
    run_state_machine_as_test(BrokerModel, settings=settings(stateful_step_count=40))
