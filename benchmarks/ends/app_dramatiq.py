"""Tasks of dramatiq on Redis, which it acknowledges behind the actor, and the client end."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.control import Control, now
from benchmarks.ends.app_tasks import broker_url

broker = RedisBroker(url=broker_url())
broker.add_middleware(Results(backend=RedisBackend(url=broker_url())))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)  # type: ignore[untyped-decorator]
def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


def submit(control: Control) -> None:
    """Submit all, then wait for each result."""
    noop.send(0).get_result(block=True, timeout=60_000)
    control.write(address=None)
    for job in control.jobs():
        started = now()
        messages = [noop.send(job["size"]) for _ in range(job["count"])]
        for message in messages:
            assert len(message.get_result(block=True, timeout=600_000)) == job["size"]
        control.write(started=started, finished=now())


if __name__ == "__main__":
    submit(Control())
