"""Tasks of an app, from the first submit to the last result, beside taskiq, dramatiq and Celery on Redis."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import (
    CELERY,
    DRAMATIQ,
    REDPOLL,
    TASKIQ_REDIS,
    Comparison,
    Contender,
    Figure,
    Figures,
    Job,
    Peer,
    Row,
    on_loops,
)

OPEN = "64"


def measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": job.count * job.fields.get("tasks", 1) / (client["finished"] - client["started"])}


def folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _on_redis(peer: Peer, setting: str, module: str, *worker: str) -> Contender:
    return Contender(
        peer, setting, module, "app_tasks", server={"runs": "redis", "worker": worker}, client_module=f"app_{module}"
    )


RUN = ("redpoll", "run", "benchmarks.ends.app_redpoll", "--workers", "1", "--concurrency", OPEN)

APP = Contender(
    REDPOLL, "App", "redpoll", "app_tasks", server={"runs": "hub", "worker": RUN}, client_module="app_redpoll"
)
CELERY_ON_REDIS = _on_redis(
    CELERY,
    "prefork 1",
    "celery",
    *("celery", "-A", "benchmarks.ends.app_celery", "worker", "--pool", "prefork", "--concurrency", "1"),
    *("--without-gossip", "--without-mingle"),
)

ROW = Row(
    name="app_tasks",
    title="no-op tasks of an app, from the first submit to the last result: one worker process, 64 tasks at a time",
    notes=(
        "Broker, worker and submitter in processes of their own; all acknowledge a task behind it, and keep its result.",
        "redpoll: App and redpoll run on a hub, which syncs before it confirms a task, and an outcome. Redis with Debian's",
        "defaults: it syncs nothing. taskiq: a stream, and a result asked for every 50 ms. dramatiq: 64 threads.",
        "Celery: a prefork worker with one child, prefetch 64. Submitters: 64 coroutines; dramatiq and Celery one thread.",
    ),
    contenders=[
        APP,
        *on_loops(
            _on_redis(
                TASKIQ_REDIS,
                "",
                "taskiq",
                *("taskiq", "worker", "benchmarks.ends.app_taskiq:broker", "--workers", "1"),
                *("--max-async-tasks", OPEN, "--log-level", "WARNING"),
            )
        ),
        _on_redis(
            DRAMATIQ, "", "dramatiq", "dramatiq", "benchmarks.ends.app_dramatiq", "--processes", "1", "--threads", OPEN
        ),
        CELERY_ON_REDIS,
    ],
    jobs=[
        Job("no-op", 10_000, {"size": 0}, warm_up=500),
        Job("1 MiB results", 200, {"size": 2**20}, warm_up=10),
    ],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        Comparison("redpoll", "taskiq", "no-op", bar=2),
        Comparison("redpoll", "dramatiq", "no-op", bar=3),
        Comparison("redpoll", "celery", "no-op", bar=5),
        Comparison("redpoll", "celery", "1 MiB results", bar=2),
    ],
    measure=measure,
    prepare=folder,
)
