"""Tasks that pile up: what a million of them takes of memory, and how fast more come in."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": job.count / (client["finished"] - client["started"]), "bytes": client["bytes_each"]}


def _holding(group: str, times: int) -> list[Contender]:
    return on_loops(Contender(REDPOLL, group, group, "bus_engine", {"work": "backlog", "times": times}))


ROW = Row(
    name="bus_backlog",
    title="bus in process: 500,000 tasks into a queue that nobody reads, which is empty, or holds 1,000,000",
    notes=(
        "Each task is published by an await of its own. Memory is what the process grew by while the 1,000,000 came in,",
        "by each, less its envelope and body. The garbage collector's part is in the rates.",
    ),
    contenders=[*_holding("empty", 0), *_holding("1 M queued", 2)],
    jobs=[Job("submit", 500_000, {}, warm_up=1_000)],
    figures={"rate": Figure("tasks/s"), "bytes": Figure("bytes each")},
    comparisons=[
        Comparison("1 M queued", "empty", "submit", bar=0.8),
        Comparison("1 M queued", None, "submit", "bytes", higher=False, bar=250),
    ],
    measure=_measure,
)
