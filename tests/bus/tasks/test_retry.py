"""Trying again after an exception."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus import Retry
from redpoll.errors import ConfigError, DeadLettered, RemoteError
from tests.bus.tasks.support import Q, desk, turns

pytestmark = pytest.mark.asyncio


async def test_retries() -> None:
    """An exception that the policy covers is tried again, later each time, by any worker; then it is the outcome."""
    async with desk(exceptions=[OSError]) as bus:
        tries: list[int] = []

        async def handler(task: Any) -> Any:
            tries.append(task.tries)
            if task.data == "value":
                raise ValueError("final")
            raise OSError("again")

        policy = Retry(times=2, on=OSError, backoff=10, jitter=0)
        async with bus.tasks.worker(handler, Q, retry=policy):
            with pytest.raises(RemoteError):
                await bus.tasks.run("value", Q)
            assert tries == [1]
            handle = await bus.tasks.submit("os", Q)
            await turns()
            await bus.time.advance(9.9)
            assert tries == [1, 1]
        async with bus.tasks.worker(handler, Q, retry=policy):
            await bus.time.advance(0.1)
            assert tries == [1, 1, 2]
            assert await handle.state() == "delayed"
            (info,) = await bus.queues.browse(Q, "delayed")
            assert info.history == ("try 1 failed: OSError: again", "try 2 failed: OSError: again")
            assert info.attempt == 1
            await bus.time.advance(20)
            with pytest.raises(OSError, match="again"):
                await handle.result()
        assert tries == [1, 1, 2, 3]


async def test_retries_that_end_among_the_dead_letters() -> None:
    """With dead_letter a task that was tried often enough is kept, with what became of each try, and begins anew."""
    async with desk() as bus:

        async def handler(task: Any) -> Any:
            raise OSError("again")

        async with bus.tasks.worker(handler, Q, retry=Retry(times=1, backoff=1, jitter=0, dead_letter=True)):
            handle = await bus.tasks.submit(1, Q)
            await turns()
            await bus.time.advance(1)
            with pytest.raises(DeadLettered, match="try 2 failed: OSError: again"):
                await handle.result()
        (dead,) = await bus.queues.browse(Q, "dead")
        assert dead.history == ("try 1 failed: OSError: again", "try 2 failed: OSError: again")
        await bus.queues.redrive(Q)
        async with bus.tasks.next(Q) as task:
            assert task.tries == 1


async def test_pauses() -> None:
    """Pauses grow up to the longest, and a part of each is left to chance."""
    policy = Retry(backoff=1, longest=10, jitter=0.5)
    assert [policy.pause(tries, lambda: 0.0) for tries in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 10, 10]
    assert policy.pause(2, lambda: 1.0) == 1
    assert 0.5 <= policy.pause(1) <= 1
    assert [Retry(backoff=3, longest=3, jitter=0).pause(tries) for tries in (1, 2, 1_000_000)] == [3, 3, 3]


@pytest.mark.parametrize(
    "options",
    {"times": 0, "on": (OSError, int), "backoff": 61, "longest": -1, "jitter": 2, "dead_letter": 1}.items(),
)
async def test_a_policy_that_cannot_be_is_refused(options: tuple[str, Any]) -> None:
    """Each field of a policy is checked, and named."""
    with pytest.raises(ConfigError, match=options[0]):
        Retry(**{options[0]: options[1]})
