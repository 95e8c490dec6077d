"""Chains and groups of an app's tasks, beside Celery's on Redis."""

from benchmarks.model import Comparison, Figure, Job, Row
from benchmarks.rows.app_tasks import APP, CELERY_ON_REDIS, folder, measure

ROW = Row(
    name="app_groups",
    title="chains and groups of an app's no-op tasks, from the first submit to the last result: one worker process",
    notes=(
        "As app_tasks. redpoll submits a chain or a group in one step, and begins what comes after others in the",
        "transaction of their outcome. Celery's worker submits the next task of a chain when the one before has ended.",
    ),
    contenders=[APP, CELERY_ON_REDIS],
    jobs=[
        Job("single tasks", 3_000, {"size": 0}, warm_up=300),
        Job("chains of 3", 1_000, {"tasks": 3, "work": "chain"}, warm_up=50),
        Job("groups of 100", 30, {"tasks": 100, "work": "group"}, warm_up=3),
    ],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        Comparison("redpoll", "celery", "single tasks"),
        Comparison("redpoll", "celery", "chains of 3"),
        Comparison("redpoll", "celery", "groups of 100"),
    ],
    measure=measure,
    prepare=folder,
)
