"""A million tasks in a hub: memory, restart, and the rate beside an empty one."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {
        **{name: client[name] for name in ("submit", "deliver")},
        "memory": server["memory"],
        "restart": server["restart"],
        "processor": server["processor"],
    }


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _holding(group: str, times: int) -> list[Contender]:
    return on_loops(Contender(REDPOLL, group, group, "hub_backlog", {"times": times}))


ROW = Row(
    name="hub_backlog",
    title="a hub with 1,000,000 tasks of 1 KiB in a queue: its memory, its restart after SIGKILL; 20,000 submitted, and done",
    notes=(
        "Confirmed submits with 64 open, then a worker of concurrency 64, which does the oldest. Memory is the most that",
        "the hub's process had; processor is its time for a task that is submitted and done. The restart is from the kill to",
        "a declared queue, with the start of an interpreter.",
    ),
    contenders=[*_holding("empty", 0), *_holding("1 M queued", 50)],
    jobs=[Job("tasks", 20_000, {}, warm_up=0)],
    figures={
        "submit": Figure("submitted/s"),
        "deliver": Figure("done/s"),
        "memory": Figure("MiB", 1 / (1 << 20)),
        "restart": Figure("restart s", 1, 1),
        "processor": Figure("processor, us", 1e6, 1),
    },
    comparisons=[
        Comparison("1 M queued", None, "tasks", "memory", higher=False, bar=300),
        Comparison("1 M queued", None, "tasks", "restart", higher=False, bar=10),
        Comparison("1 M queued", "empty", "tasks", "submit", bar=0.7),
        Comparison("1 M queued", "empty", "tasks", "deliver", bar=0.7),
        Comparison("1 M queued", "empty", "tasks", "processor", higher=False),
    ],
    measure=_measure,
    prepare=_folder,
)
