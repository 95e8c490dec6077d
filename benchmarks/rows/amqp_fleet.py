"""Calls and casts of many processes on one RabbitMQ, by redpoll and oslo.messaging."""

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import OSLO, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.network import with_rabbitmq

PROCESSES = 17
OPEN = 5


def measure(job: Job, client: Fields, server: Fields) -> Figures:
    """Return the rate until the last one was served, the p99 of the callers, and how many were lost."""
    finished = max(client["finished"], server["finished"])
    return {
        "rate": client["count"] / (finished - client["started"]),
        "p99": percentile(client["times"], 99),
        "lost": client["failed"] + max(0, client["count"] - server["served"]),
    }


def _options(module: str) -> dict[str, object]:
    return {"worker": module, "workers": PROCESSES}


def jobs(processes: int) -> list[Job]:
    """Return calls and casts, as many for each process, so that none is left over."""
    return [
        Job(work, 200 * processes, {"work": work, "open": OPEN}, warm_up=20 * processes) for work in ("call", "cast")
    ]


FIGURES = {"rate": Figure("per second"), "p99": Figure("p99 ms", 1_000), "lost": Figure("lost")}

ROW = Row(
    name="amqp_fleet",
    title=f"{PROCESSES} processes call and cast to {PROCESSES} others on one RabbitMQ, each with {OPEN} open; 100 bytes",
    notes=(
        "The machine is overloaded, and RabbitMQ with it. A cast is done once it is confirmed; all have been served in the",
        "time that counts. Lost: those that failed, and those that were not served.",
        "oslo.messaging: executor threading, five caller threads in each process.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "", "redpoll", "amqp_fleet", _options("amqp_fleet"))),
        Contender(OSLO, "", "oslo", "amqp_fleet", _options("amqp_fleet_oslo")),
    ],
    jobs=jobs(PROCESSES),
    figures=FIGURES,
    comparisons=[
        Comparison("redpoll", "oslo", "call", bar=1.5),
        Comparison("redpoll", "oslo", "cast", bar=2),
        Comparison("redpoll", None, "call", "lost", higher=False, bar=0),
        Comparison("redpoll", None, "cast", "lost", higher=False, bar=0),
        Comparison("redpoll", "oslo", "call", "p99", higher=False),
        Comparison("redpoll", "oslo", "cast", "p99", higher=False),
    ],
    measure=measure,
    network=with_rabbitmq,
)
