"""Tasks of Celery, acknowledged behind the task, on whatever broker there is, and the client end."""

from __future__ import annotations

from celery import Celery

from benchmarks.control import Control, now
from benchmarks.ends.app_tasks import broker_url

app = Celery("noop", broker=broker_url(), backend=broker_url())
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=64)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


def submit(control: Control) -> None:
    """Submit all, then wait for each result."""
    noop.delay(0).get(timeout=60)
    control.write(address=None)
    for job in control.jobs():
        started = now()
        for result in [noop.delay(job["size"]) for _ in range(job["count"])]:
            assert len(result.get(timeout=600)) == job["size"]
        control.write(started=started, finished=now())


if __name__ == "__main__":
    submit(Control())
