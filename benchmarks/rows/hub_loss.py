"""A worker that is gone: the time until another one begins its task."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"longest": max(client["taken"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_loss",
    title="from the loss of a worker until another one begins its task; default options",
    notes=(
        "Two workers, each in a process, wait at a hub in a third one; the one that begins the task is killed, so that its",
        "links are closed, or frozen by SIGSTOP, so that it is silent. The longest time of all tasks.",
    ),
    contenders=on_loops(Contender(REDPOLL, "hub", "hub", "hub_workers")),
    jobs=[
        Job("killed", 5, {"signal": "SIGKILL"}, warm_up=0),
        Job("frozen", 1, {"signal": "SIGSTOP"}, warm_up=0),
    ],
    figures={"longest": Figure("longest s", 1, 2)},
    comparisons=[
        Comparison("hub", None, "killed", "longest", higher=False, bar=1.2),
        Comparison("hub", None, "frozen", "longest", higher=False, bar=20),
    ],
    measure=_measure,
    prepare=_folder,
)
