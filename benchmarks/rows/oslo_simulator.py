"""Calls and casts of many processes by oslo.messaging: its driver for redpoll on a hub, beside RabbitMQ's."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import OSLO, REDPOLL, Comparison, Contender, Peer, Row
from benchmarks.rows.amqp_fleet import FIGURES, OPEN, jobs, measure

#: Of each side; 17 are the aim, and more than two cores can tell apart.
PROCESSES = 6


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _contender(peer: Peer, setting: str, runs: str) -> Contender:
    options = {"worker": "amqp_fleet_oslo", "workers": PROCESSES, "runs": runs}
    return Contender(peer, setting, runs, "amqp_fleet", options)


ROW = Row(
    name="oslo_simulator",
    title=f"{PROCESSES} processes of oslo.messaging call and cast to {PROCESSES} others, each with {OPEN} open; 100 bytes",
    notes=(
        "The same program by the driver of redpoll:// on a hub, and by that of rabbit:// on RabbitMQ; executor threading,",
        "five caller threads in each process. A cast is done once it is confirmed; all have been served in the time that",
        "counts.",
        "Lost: those that failed, and those that were not served.",
    ),
    contenders=[_contender(REDPOLL, "driver", "hub"), _contender(OSLO, "rabbit driver", "rabbitmq")],
    jobs=jobs(PROCESSES),
    figures=FIGURES,
    comparisons=[
        Comparison("hub", "rabbitmq", "call", bar=2),
        Comparison("hub", "rabbitmq", "cast"),
        Comparison("hub", None, "call", "lost", higher=False, bar=0),
        Comparison("hub", None, "cast", "lost", higher=False, bar=0),
        Comparison("hub", "rabbitmq", "call", "p99", higher=False),
        Comparison("hub", "rabbitmq", "cast", "p99", higher=False),
    ],
    measure=measure,
    prepare=_folder,
)
