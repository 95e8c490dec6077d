"""Tasks of Celery, acknowledged behind the task, on whatever broker there is, and the client end."""

from __future__ import annotations

from celery import Celery

from benchmarks.control import Control, arguments, now
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


def submit(control: Control) -> None:
    """Submit all, then wait for each result."""
    if arguments()[1].get("transient"):
        app.conf.task_default_delivery_mode = "transient"
    noop.delay(0).get(timeout=60)
    control.write(address=None)
    for job in control.jobs():
        started = now()
        for result in [noop.delay(job["size"]) for _ in range(job["count"])]:
            assert len(result.get(timeout=600)) == job["size"]
        control.write(started=started, finished=now())


if __name__ == "__main__":
    submit(Control())
