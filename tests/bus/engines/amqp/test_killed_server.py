"""A server that is killed has each confirmed task when it runs again; it may move delayed and expired ones late, or twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import redpoll
from benchmarks.rabbitmq import RabbitMQ, Server
from redpoll.bus import Bus, QueueSpec, Task
from redpoll.bus.engines.amqp.foreign.foreign import ForeignMessage
from redpoll.errors import TaskExpired
from tests.bus.engines.amqp.support import elapse, until
from tests.ports import free_port
from tests.rabbitmq import Broker, serves

# The server takes seconds to start, and a task that it held waits for three minutes.
pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.asyncio, pytest.mark.timeout(900)]

#: As the reference says.
SETTING = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
#: Seconds in which all tasks are done: twice what RabbitMQ waits, and what a busy machine needs.
PATIENCE = {"": 480.0, SETTING: 120.0}
#: Queues that are recovered before the exchanges, tasks of a round, and rounds at most.
QUEUES, TASKS, ROUNDS = 80, 60, 10


@pytest.mark.parametrize("delay", [0.0, 0.1])
async def test_a_new_queue_outlives_a_killed_server(rabbitmq: Broker, delay: float) -> None:
    """A confirmed task is there behind a kill at once after it, though its queue and the step of its delay were just made."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.tasks.submit("kept", queue="q", delay=delay, no_reply=True)
        rabbitmq.server.kill()
        rabbitmq.server.start()
        await serves(rabbitmq.server)
        async with bus.tasks.next("q", timeout=PATIENCE[""]) as task:
            assert task.data == "kept"
            task.set_result(None)


def holds(server: Server) -> bool:
    """Return True if a queue found no exchange, or no queue behind it, as the server started."""
    return b"Cannot forward any dead-letter messages" in server.log.read_bytes()


async def server_with(setting: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RabbitMQ:
    """Start a server of the test's own with a setting; "" is none."""
    if setting:
        file = folder / "advanced.config"
        file.write_text(setting)
        monkeypatch.setenv("RABBITMQ_ADVANCED_CONFIG_FILE", str(file))
    return await asyncio.to_thread(RabbitMQ, folder, 1, None, free_port)


async def restart(server: Server) -> None:
    """Kill a server, and start it again once all that waits in it is due."""
    server.kill()
    await elapse(2.0)
    server.start()
    await serves(server)


@pytest.mark.parametrize("setting", [SETTING, ""], ids=["told", "default"])
async def test_delayed_tasks_outlive_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Each delayed task that was confirmed is done behind a restart that held some, at RabbitMQ's next attempt."""
    confirmed: set[int] = set()
    done: set[int] = set()

    async def work(task: Task) -> None:
        done.add(task.data)

    async def submit(bus: Bus, number: int) -> None:
        await bus.tasks.submit(number, queue="q", delay=0.4 + number % 12 / 10, no_reply=True)
        confirmed.add(number)

    with await server_with(setting, tmp_path, monkeypatch) as rabbitmq:
        (server,) = rabbitmq.servers
        async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(work, queue="q", concurrency=20):
            for number in range(QUEUES):
                await bus.queues.declare(QueueSpec(f"other-{number}", priorities=5))
            rounds = 0
            while rounds < ROUNDS and not holds(server):
                await asyncio.gather(*(submit(bus, rounds * TASKS + each) for each in range(TASKS)))
                rounds += 1
                await restart(server)
            assert holds(server), "no restart held a task"
            await until(lambda: confirmed <= done, "the tasks", PATIENCE[setting])
    assert len(confirmed) == rounds * TASKS


async def test_outcomes_of_expired_tasks_outlive_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task that expired while its server was away is told to its publisher, at the next attempt where that is held."""
    with await server_with(SETTING, tmp_path, monkeypatch) as rabbitmq:
        (server,) = rabbitmq.servers
        async with redpoll.connect(rabbitmq.url) as bus:
            for number in range(QUEUES):
                await bus.queues.declare(QueueSpec(f"other-{number}", priorities=5))
            await bus.queues.declare("late")
            for _ in range(ROUNDS):
                submits = (bus.tasks.submit(number, queue="late", ttl=1.5) for number in range(TASKS))
                handles = await asyncio.gather(*submits)
                await restart(server)
                results = (each.result(PATIENCE[SETTING]) for each in handles)
                outcomes = await asyncio.gather(*results, return_exceptions=True)
                assert {type(each) for each in outcomes} == {TaskExpired}
                if holds(server):
                    break
            assert holds(server), "no restart held a task"


async def test_a_dead_letter_that_is_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter that had arrived, which its queue had not noted when the server was killed, is moved again."""
    mover = "element(2, hd(supervisor:which_children(rabbit_fifo_dlx_sup)))"
    target = "whereis('%2F_q.dead')"
    found: Counter[str | None] = Counter()
    with await server_with(SETTING, tmp_path, monkeypatch) as rabbitmq:
        (server,) = rabbitmq.servers

        def moving() -> int:
            """Return how many dead letters were sent on, and are not noted as arrived."""
            return int(server.evaluate(f"maps:size(element(8, sys:get_state({mover})))"))

        def take(letter: ForeignMessage) -> None:
            found[letter.properties.message_id] += 1
            letter.ack()

        async def arrived(number: int) -> None:
            async with asyncio.timeout(PATIENCE[SETTING]):
                while (await bus.queues.inspect("q")).dead < number:  # noqa: ASYNC110  # nothing tells it
                    await asyncio.sleep(0.05)

        # Until it is killed nothing is sent again for want of a confirmation.
        server.evaluate("application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 900000)")
        async with redpoll.connect(rabbitmq.url) as bus:
            # Of the first one the mover and the queue of dead letters get to know each other, which takes an answer.
            first = await bus.tasks.submit("first", queue="q", ttl=0.1, no_reply=True)
            await arrived(1)
            await until(lambda: not moving(), "the end of the first")
            server.evaluate(f"sys:suspend({target})")
            second = await bus.tasks.submit("second", queue="q", ttl=0.1, no_reply=True)
            await until(moving, "the second on its way")
            # From here on nobody notes the confirmation.
            server.evaluate(f"sys:suspend({mover}), sys:resume({target})")
            await arrived(2)
            server.kill()
            server.start()
            await serves(server)
            async with await bus.foreign.consume("q.dead", sink=take):
                await until(lambda: found[second.id] > 1, "the second again", PATIENCE[SETTING])
    assert found[first.id] == 1
