"""The processor time of an app with schedules that does nothing."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"used": client["value"]}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="app_idle",
    title="processor time of an app with 1,000 schedules that are not due: redpoll run with one worker, and the hub",
    notes=("Of one core, in ten seconds, from a second after the worker is ready.",),
    contenders=[Contender(REDPOLL, "App", "app", "app_costs")],
    jobs=[Job("idle", 1_000, {"work": "rest", "seconds": 10}, warm_up=0)],
    figures={"used": Figure("% of a core", 100, 2)},
    comparisons=[Comparison("app", None, "idle", "used", higher=False, bar=1)],
    measure=_measure,
    prepare=_folder,
)
