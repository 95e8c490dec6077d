"""The time from `redpoll run` until the first task begins."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"value": client["value"]}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="app_first_task",
    title="from the start of redpoll run until a task begins that waits for it at a hub",
    notes=(
        "The start of two interpreters, the parent and its one worker, with their imports; the median of a few starts.",
    ),
    contenders=[Contender(REDPOLL, "App", "app", "app_costs")],
    jobs=[Job("start", 5, {"work": "start"}, warm_up=1)],
    figures={"value": Figure("s", 1, 2)},
    comparisons=[Comparison("app", None, "start", "value", higher=False, bar=1)],
    measure=_measure,
    prepare=_folder,
)
