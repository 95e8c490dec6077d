"""net-queue's own iops.py with messages of many sizes, with net-queue and with redpoll."""

from benchmarks.model import Comparison, Job, Row
from benchmarks.rows.iops import FIGURES, MEMORY, NOTES, contenders, measure, prepare

ROW = Row(
    name="nq_iops_mix",
    title="net-queue's iops.py over TCP: from 256 bytes by steps of 4 to 1 GiB, both directions at once",
    notes=(
        *NOTES,
        "Of smaller messages there are more: half as many of each size four times as large. The count is that of MiB of",
        "the largest, of which there is one. Each end has an array of that size from the start.",
        *MEMORY,
    ),
    contenders=contenders("tcp"),
    jobs=[Job("async mix", 1_024, {"mode": "async", "mix": True}, warm_up=1)],
    figures=FIGURES,
    comparisons=[
        Comparison("redpoll", "net-queue", "async mix", "gigabits", bar=1.5),
        Comparison("redpoll", "net-queue", "async mix", "grown", higher=False, bar=1),
    ],
    measure=measure,
    prepare=prepare,
)
