"""Casts and notifications through a hub, beside oslo.messaging on RabbitMQ."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import OSLO, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["count"] / (client["finished"] - client["started"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_casts",
    title="casts and notifications of 100 bytes to a hub, until confirmed, 1 and 64 open",
    notes=(
        "An rpc server and a listener take them, in a process of their own. The hub confirms a notification when it is on",
        "disk, a cast when a queue has it. oslo.messaging: on RabbitMQ, one thread for 1 open, five for 64.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "hub", "hub", "hub_calls")),
        Contender(OSLO, "", "oslo", "hub_oslo"),
    ],
    jobs=[
        Job(f"{work}, {open_} open", count, {"work": work, "open": open_}, warm_up=count // 10)
        for work in ("cast", "notify")
        for open_, count in ((1, 500), (64, 6_400))
    ],
    figures={"rate": Figure("messages/s")},
    comparisons=[
        Comparison("hub", "oslo", "cast, 64 open", bar=10),
        Comparison("hub", "oslo", "notify, 64 open", bar=10),
        Comparison("hub", "oslo", "cast, 1 open"),
        Comparison("hub", "oslo", "notify, 1 open"),
    ],
    measure=_measure,
    prepare=_folder,
)
