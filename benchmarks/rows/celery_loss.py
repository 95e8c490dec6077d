"""Celery's worker that is gone: the time until another one begins its task, on a hub and on Redis."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import CELERY, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"longest": max(client["taken"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="celery_loss",
    title="Celery: from the loss of a worker until its task begins again",
    notes=(
        "Two prefork workers with one child each, acks_late and reject_on_worker_lost; the one that begins the task is",
        "killed with its child, or the child alone. Redis: with a visibility timeout of 10 s, where the default is an hour:",
        "each task that takes longer than it begins twice.",
    ),
    contenders=[
        Contender(REDPOLL, "hub", "hub", "celery_loss", {"runs": "hub"}),
        Contender(CELERY, "Redis, visibility timeout 10 s", "redis", "celery_loss", {"runs": "redis"}),
    ],
    jobs=[
        Job("worker killed", 1, {"lost": "worker"}, warm_up=0),
        Job("child killed", 1, {"lost": "child"}, warm_up=0),
    ],
    figures={"longest": Figure("longest s", 1, 2)},
    comparisons=[
        Comparison("hub", "redis", "worker killed", "longest", higher=False),
        Comparison("hub", "redis", "child killed", "longest", higher=False),
    ],
    measure=_measure,
    prepare=_folder,
)
