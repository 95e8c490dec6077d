"""Tasks of Celery, acknowledged behind the task, on whatever broker there is, and the client end."""

from __future__ import annotations

from typing import Any

from celery import Celery, chain, group

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.app_tasks import broker_url

url = broker_url()
if url.startswith("redpoll:"):
    import redpoll.compat.celery  # noqa: F401  # it registers the transport and the backend

app = Celery("noop", broker=url, backend="rpc://" if url.startswith("amqp:") else url)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=64)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


@app.task(name="more")  # type: ignore[untyped-decorator]
def more(number: int) -> int:
    """Add one."""
    return number + 1


def made(job: Fields) -> Any:
    """Make a chain or a group, or a task."""
    if "work" not in job:
        return noop.s(job["size"])
    if job["work"] == "chain":
        return chain(more.s(0), *[more.s()] * (job["tasks"] - 1))
    return group(more.s(0) for _ in range(job["tasks"]))


def total(result: Any) -> int:
    """Return the length of a text, the number of a chain, or the sum of a group."""
    return len(result) if isinstance(result, str) else sum(result) if isinstance(result, list) else int(result)


def submit(control: Control) -> None:
    """Submit all, then wait for each result."""
    if arguments()[1].get("transient"):
        app.conf.task_default_delivery_mode = "transient"
    noop.delay(0).get(timeout=60)
    control.write(address=None)
    for job in control.jobs():
        started = now()
        for result in [made(job).delay() for _ in range(job["count"])]:
            assert total(result.get(timeout=600)) == job.get("tasks", job.get("size"))
        control.write(started=started, finished=now())


if __name__ == "__main__":
    submit(Control())
