"""Tasks through a hub, confirmed from its disk and done, beside a loop that syncs a file, JetStream, RabbitMQ and Redis."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import (
    AIOPIKA,
    FILES,
    NATS,
    REDIS,
    REDPOLL,
    Comparison,
    Contender,
    Figure,
    Figures,
    Job,
    Row,
    on_loops,
)


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["count"] / (client["finished"] - client["started"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_tasks",
    title="tasks of 1 KiB to a hub: confirmed, by 1, 64 and 1,000 callers; and done, by a worker of 64 and of 1",
    notes=(
        "Hub, worker and submitter in processes of their own. A task is confirmed after its fsync; it is done when its",
        "submitter has the outcome, which is on disk too. files: os.write of 1 KiB to the end of a file, and os.fdatasync,",
        "one after the other. JetStream: a file stream with sync_interval always, which syncs before it confirms; awaited",
        "publishes. RabbitMQ: persistent messages in a quorum queue, which syncs before it confirms, or a classic durable,",
        "which syncs later; awaited publishes by aio-pika. Redis: a stream with appendfsync always, 64 connections",
        "at most. None of these three has a done. In the folder for temporary files, which has to be on a disk.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "hub", "hub", "hub_tasks", {"slots": 64})),
        *on_loops(Contender(REDPOLL, "hub, concurrency 1", "one", "hub_tasks", {"slots": 1})),
        Contender(NATS, "JetStream", "jetstream", "hub_jetstream"),
        Contender(AIOPIKA, "quorum", "quorum", "hub_rabbitmq", {"queue": "quorum"}),
        Contender(AIOPIKA, "classic", "classic", "hub_rabbitmq", {"queue": "classic"}),
        *on_loops(Contender(REDIS, "", "redis", "hub_redis", {"connections": 64})),
        Contender(FILES, "write and fdatasync", "file", "hub_store", {"work": "file"}),
    ],
    jobs=[
        Job("confirmed, 1 open", 500, {"open": 1, "ends": False}, warm_up=20),
        Job("confirmed, 64 open", 12_800, {"open": 64, "ends": False}, warm_up=640),
        Job("confirmed, 1,000 open", 20_000, {"open": 1_000, "ends": False}, warm_up=1_000),
        Job("done, 64 open", 6_400, {"open": 64, "ends": True}, warm_up=640),
    ],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        Comparison("hub", "file", "confirmed, 1 open", bar=0.3),
        Comparison("hub", "file", "confirmed, 64 open", bar=3, aim=6),
        Comparison("hub", "file", "confirmed, 1,000 open"),
        Comparison("hub", "jetstream", "confirmed, 64 open", bar=5, aim=10),
        Comparison("hub", "quorum", "confirmed, 64 open", bar=2),
        Comparison("hub", "classic", "confirmed, 64 open", bar=1.5),
        Comparison("hub", "redis", "confirmed, 64 open", bar=1),
        Comparison("hub", "file", "done, 64 open", bar=1.2, aim=3),
        Comparison("one", "hub", "done, 64 open", bar=0.5),
    ],
    measure=_measure,
    prepare=_folder,
)
