"""A broker that is killed, started again, and stands still, in the midst of both scripts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.nq.mqtt.support import Mosquitto
from tests.nq.survival.conftest import LITTLE, Yard
from tests.nq.survival.programs import Running

pytestmark = pytest.mark.parametrize("protocol", ["mqtt"], indirect=True)

COUNT = 300

scripts = pytest.mark.parametrize("script", ["greet", "volley", "both"])


def _begin(yard: Yard, script: str, resume: float) -> tuple[Running, Running]:
    given: dict[str, Any] = {"connection": {"resume": resume}}
    server = yard.start("serve", **given).wait_ready()
    client = yard.start(script, count=COUNT, **given)
    client.until(lambda: client.logged("ended"), "the first that is confirmed")
    return server, client


def still(running: Running) -> None:
    """Wait until it has not got on for a while."""
    before = running.log
    while True:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            time.sleep(0.05)
        now = running.log
        if now == before:
            return
        before = now


def _go_on(yard: Yard, server: Running, client: Running) -> None:
    """All ends as if nothing had been."""
    assert client.ended() == []
    assert yard.start("finish").ended() == []
    assert server.ended() == []


@scripts
def test_killed_and_started_again(yard: Yard, mosquitto: Mosquitto, script: str) -> None:
    """Everything arrives once, in order."""
    server, client = _begin(yard, script, 10.0)
    mosquitto.restart()
    _go_on(yard, server, client)


@scripts
def test_again_and_again(yard: Yard, mosquitto: Mosquitto, script: str) -> None:
    """The same if it is killed before all is well again."""
    server, client = _begin(yard, script, 10.0)
    for _ in range(3):
        mosquitto.restart()
        client.wait_lines(len(client.log) + 1)
    _go_on(yard, server, client)


@scripts
def test_standing_still(yard: Yard, mosquitto: Mosquitto, script: str) -> None:
    """When it goes on, so does everything."""
    server, client = _begin(yard, script, 20.0)
    mosquitto.freeze()
    still(client)
    mosquitto.thaw()
    _go_on(yard, server, client)


@scripts
def test_gone_for_good(yard: Yard, mosquitto: Mosquitto, script: str) -> None:
    """Who was met is told, and nobody spins."""
    server, client = _begin(yard, script, 1.0)
    mosquitto.kill()
    assert client.ended() in ([], ["ConnectionResetError"])
    assert server.computed(0.5) < LITTLE
    mosquitto.start()
    assert yard.start("finish").ended() == []
    assert server.ended() == []
