"""Many workers that wait at a hub: memory, and how soon one of them begins."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    taken = sorted(client["taken"])
    return {"median": percentile(taken, 50.0), "p99": percentile(taken, 99.0), "grown": server["grown"]}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_crowd",
    title="2,000 workers of 4 processes wait at a hub, each over a plain connection: its memory; time from submit to begin",
    notes=(
        "Memory is the hub's above that of the empty one, when all workers wait. Then 500 tasks are submitted one after the",
        "other; the time is from before the submit to the begin of the handler.",
    ),
    contenders=on_loops(Contender(REDPOLL, "hub", "hub", "hub_workers")),
    jobs=[Job("workers", 2_000, {}, warm_up=0)],
    figures={
        "grown": Figure("growth MiB", 1 / (1 << 20), 1),
        "median": Figure("median ms", 1e3, 1),
        "p99": Figure("p99 ms", 1e3, 1),
    },
    comparisons=[
        Comparison("hub", None, "workers", "grown", higher=False, bar=60),
        Comparison("hub", None, "workers", "p99", higher=False, bar=20),
    ],
    measure=_measure,
    prepare=_folder,
)
