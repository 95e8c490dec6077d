"""Celery on a hub, beside the same Celery on Redis and on RabbitMQ."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import CELERY, REDPOLL, Comparison, Contender, Figure, Figures, Job, Peer, Row

POOL = ("--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle")
WORKER = ("celery", "-A", "benchmarks.ends.app_celery", "worker", *POOL)


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": job.count / (client["finished"] - client["started"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _contender(peer: Peer, setting: str, group: str, runs: str, **options: object) -> Contender:
    server = {"runs": runs, "worker": WORKER}
    return Contender(peer, setting, group, "app_tasks", options, server=server, client_module="app_celery")


ROW = Row(
    name="celery_transport",
    title="Celery: no-op tasks from the first delay() to the last result; a prefork worker with two children",
    notes=(
        "The same program on each: acks_late, prefetch 64, JSON, a thread that sends all and then asks for each result.",
        "redpoll: broker and result backend on a hub, which syncs before it confirms a task, and a result; transient:",
        "delay() does not wait for that of the task. Redis: both; with Debian's defaults it syncs nothing. RabbitMQ: a",
        "durable queue, for which delay() does not wait, and rpc:// results, which are not stored.",
    ),
    contenders=[
        _contender(REDPOLL, "hub", "hub", "hub"),
        _contender(REDPOLL, "hub, transient", "transient", "hub", transient=True),
        _contender(CELERY, "Redis", "redis", "redis"),
        _contender(CELERY, "Redis, appendfsync always", "synced", "redis", appendonly="yes", appendfsync="always"),
        _contender(CELERY, "RabbitMQ", "rabbitmq", "rabbitmq"),
    ],
    jobs=[Job("no-op", 10_000, {"size": 0}, warm_up=200)],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        Comparison("hub", "redis", "no-op", bar=0.8),
        Comparison("hub", "synced", "no-op"),
        Comparison("hub", "rabbitmq", "no-op", bar=1),
        Comparison("transient", "redis", "no-op"),
        Comparison("transient", "rabbitmq", "no-op"),
    ],
    measure=_measure,
    prepare=_folder,
)
