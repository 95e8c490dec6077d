"""The broker's five methods, without AiiDA's daemon."""

from __future__ import annotations

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import kiwipy
import pytest
from aiida.brokers.broker import Broker

from redpoll.compat import aiida
from redpoll.compat.aiida import RedpollBroker
from redpoll.compat.kiwipy import RmqThreadCommunicator
from redpoll.errors import DialFailed
from tests.blocking.support import PATIENCE
from tests.ports import free_port

pytestmark = pytest.mark.interop

OPTIONS = {"daemon.worker_process_slots": 2, "broker.task_timeout": PATIENCE}


@pytest.fixture(autouse=True)
def _options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of AiiDA, which would make a folder for its own."""
    monkeypatch.setattr(aiida, "get_config_option", OPTIONS.__getitem__)


def broker(url: str | None, uuid: str = "one") -> RedpollBroker:
    """The broker of a profile."""
    config = {} if url is None else {"broker_url": url}
    return RedpollBroker(SimpleNamespace(uuid=uuid, process_control_config=config, is_test_profile=False))


def test_threads_share_a_communicator(hub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that ask for the communicator at once get the same one."""
    made: list[Any] = []
    make = RmqThreadCommunicator
    asked = threading.Barrier(2)

    def slow(*args: Any, **options: Any) -> Any:
        made.append(None)
        # The other thread is here before this one is connected, or waits for this one.
        with contextlib.suppress(threading.BrokenBarrierError):
            asked.wait(0.5)
        return make(*args, **options)

    monkeypatch.setattr("redpoll.compat.aiida.RmqThreadCommunicator", slow)
    one = broker(hub_url)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: one.get_communicator(), range(2))
    assert first is second
    assert len(made) == 1
    one.close()


def test_tasks_of_a_profile(hub_url: str) -> None:
    """The tasks of a profile go to its workers, `daemon.worker_process_slots` at a time; the others can be iterated."""
    one, two = broker(hub_url), broker(hub_url, "two")
    comm = one.get_communicator()
    assert comm is one.get_communicator()
    held: list[Any] = []

    def work(_: Any, task: Any) -> Any:
        held.append((task, kiwipy.Future()))
        return held[-1][1]

    comm.add_task_subscriber(work)
    send: Any = comm.task_send
    sent = [send({"pid": number}) for number in range(3)]
    meanwhile = [each.result(PATIENCE) for each in sent[:2]]
    (left,) = one.iterate_tasks()
    assert (left.body, len(held)) == ({"pid": 2}, 2)
    assert not list(two.iterate_tasks())
    for task in one.iterate_tasks():
        with task.processing() as outcome:
            outcome.set_result("repaired")
    assert sent[2].result(PATIENCE) == "repaired"
    for task, future in held:
        future.set_result(task["pid"])
    assert [each.result(PATIENCE) for each in meanwhile] == [0, 1]
    one.close()
    two.close()
    assert comm.is_closed()


def test_the_state_of_the_service(hub_url: str) -> None:
    """A probe connects and disconnects, unless it was connected; without a hub it says why, and no token is shown."""
    there = broker(hub_url)
    assert isinstance(there, Broker)
    assert there.check_service_reachable()
    assert there.probe_service_status()["engine"] == "redpoll"
    comm = there.get_communicator()
    assert there.check_service_reachable()
    assert not comm.is_closed()
    del there
    gc.collect()
    assert comm.is_closed()
    away = broker(f"redpoll://a-secret-token@127.0.0.1:{free_port()}?connect_timeout=0.2")
    assert str(away) == "redpoll @ redpoll://127.0.0.1"
    assert not away.check_service_reachable()
    assert "DialFailed" in away.probe_service_status()["error"]
    with pytest.raises(DialFailed):
        away.get_communicator()
    assert str(broker(None)) == "redpoll @ redpoll://127.0.0.1"
    assert RedpollBroker.get_default_config() == {"broker_url": "redpoll://127.0.0.1:5683"}
