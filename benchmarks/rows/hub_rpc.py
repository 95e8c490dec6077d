"""Calls through a hub, beside oslo.messaging on RabbitMQ and nats-py."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import NATS, OSLO, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client.get("count", job.count) / (client["finished"] - client["started"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_rpc",
    title="calls with 100 bytes through a hub and their answers, 1 and 64 open",
    notes=(
        "Caller, hub and callee in processes of their own. oslo.messaging: executor threading, on RabbitMQ; one caller",
        "thread for 1 open, five for 64, which were not more with more. nats-py: requests through a nats-server; the caller",
        "and the one that answers in processes of their own.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "hub", "hub", "hub_calls")),
        Contender(OSLO, "", "oslo", "hub_oslo"),
        *on_loops(Contender(NATS, "", "nats-py", "nats")),
    ],
    jobs=[
        Job("1 open", 1_000, {"work": "call", "size": 100, "open": 1}, warm_up=100),
        Job("64 open", 6_400, {"work": "call", "size": 100, "open": 64}, warm_up=640),
    ],
    figures={"rate": Figure("calls/s")},
    comparisons=[
        Comparison("hub", "oslo", "1 open", bar=4),
        Comparison("hub", "oslo", "64 open", bar=10),
        Comparison("hub", "nats-py", "1 open", bar=0.6, aim=1),
        Comparison("hub", "nats-py", "64 open", bar=0.6, aim=1),
    ],
    measure=_measure,
    prepare=_folder,
)
