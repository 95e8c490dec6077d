"""Where communicators are to survive: each protocol, in this process and in others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redpoll import nq
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import PLACES, World
from tests.nq.survival.programs import Plan, Running

FOLDER = Path(__file__).parent

#: A part of a processor, that of one who waits: one who spins has all of one.
LITTLE = 0.5

#: What all ends of a test have.
PREFIX = nq.CommunicatorOptions().prefix


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night what differs from a test of the push in the order of ten thousand cancellations alone, over gRPC."""
    for item in items:
        if item.path == FOLDER / "test_cancelling.py" and isinstance(item, pytest.Function):
            given = item.callspec.params
            if given.get("protocol") == "grpc" and given.get("order", "at random") != "at random":
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(params=list(PLACES))
def protocol(request: pytest.FixtureRequest) -> str:
    """What carries links."""
    return str(request.param)


@pytest.fixture
def security() -> None:
    """Nothing is encrypted."""


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker of the test's own."""
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def broker(mosquitto: Mosquitto) -> nq.NetworkLocation:
    """Where it is."""
    return nq.NetworkLocation("127.0.0.1", mosquitto.address.port)


@pytest.fixture
def netloc(request: pytest.FixtureRequest, protocol: str) -> nq.NetworkLocation:
    """Where the ends of a test meet."""
    return PLACES[protocol](request)


@pytest.fixture
def world(protocol: str, netloc: nq.NetworkLocation) -> Iterator[World]:
    """Where a test makes its ends in this process; they are closed behind it."""
    made = World(protocol, None, "threads", netloc, PREFIX)
    yield made
    made.end()


class Yard:
    """Where a test has its processes.

    Attributes:
        draw: Where chance comes from.
    """

    def __init__(self, folder: Path, protocol: str, netloc: nq.NetworkLocation) -> None:
        self._folder = folder
        self._protocol = protocol
        self.netloc = netloc
        self._numbers = itertools.count(1)
        self._running: list[Running] = []
        self.draw = random.Random(0)

    def start(self, script: str, **given: Any) -> Running:
        """Start a process; it is killed behind the test."""
        log = str(self._folder / f"{next(self._numbers)}-{script}")
        connection = {"resume": 1.0, "keepalive": 0.5, **given.pop("connection", {})}
        plan = Plan(script, log, given.pop("netloc", self.netloc), self._protocol, connection=connection, **given)
        running = Running(plan)
        self._running.append(running)
        return running

    def end(self) -> None:
        """Kill all."""
        for running in self._running:
            with running:
                pass


@pytest.fixture
def yard(tmp_path: Path, protocol: str, netloc: nq.NetworkLocation) -> Iterator[Yard]:
    """Where a test has its processes."""
    made = Yard(tmp_path, protocol, netloc)
    yield made
    made.end()
