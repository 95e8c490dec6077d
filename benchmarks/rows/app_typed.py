"""The time to convert the argument of a task by its annotation."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"value": client["value"]}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="app_typed",
    title="processor time to convert a dataclass with ten fields by annotations, for each task: to plain values, and back",
    notes=(
        "At the sender and at the worker together, by msgspec; one field is a dataclass, one a list and one a dict.",
    ),
    contenders=[Contender(REDPOLL, "App", "app", "app_costs")],
    jobs=[Job("convert", 100_000, {"work": "convert"}, warm_up=1_000)],
    figures={"value": Figure("us", 1e6, 2)},
    comparisons=[Comparison("app", None, "convert", "value", higher=False, bar=5)],
    measure=_measure,
    prepare=_folder,
)
