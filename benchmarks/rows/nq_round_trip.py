"""The time of one put and get and the answer's, beside net-queue."""

from collections.abc import Sequence

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import NETQUEUE, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row


def _percentiles(taken: list[int]) -> Figures:
    ordered = sorted(taken)
    return {"median": percentile(ordered, 50) * 1e-9, "p99": percentile(ordered, 99) * 1e-9}


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return _percentiles(client["taken"])


def _pool(answers: Sequence[Fields]) -> Figures:
    return {"p99": _percentiles([taken for answer in answers for taken in answer["taken"]])["p99"]}


ROW = Row(
    name="nq_round_trip",
    title="round trip over TCP: a client puts 1 byte, the server gets it and puts it back, the client gets it; one open",
    notes=("Threads that block at both ends; all options at their defaults. p99 is that of all rounds together.",),
    contenders=[
        Contender(REDPOLL, "nq", "redpoll", "queues", {"library": "redpoll", "work": "echo"}),
        Contender(NETQUEUE, "", "net-queue", "queues", {"library": "net-queue", "work": "echo"}),
    ],
    jobs=[Job("1 B", 3_000, {"size": 1}, warm_up=200)],
    figures={"median": Figure("median us", 1e6, 1), "p99": Figure("p99 us", 1e6, 1)},
    comparisons=[
        Comparison("redpoll", "net-queue", "1 B", "median", higher=False, bar=0.2),
        Comparison("redpoll", "net-queue", "1 B", "p99", higher=False),
    ],
    measure=_measure,
    pool=_pool,
)
