"""net-queue's own iops.py over TCP, with net-queue and with redpoll."""

from benchmarks.model import Comparison, Row
from benchmarks.rows.iops import FIGURES, MEMORY, NOTES, contenders, measure, messages, prepare

ROW = Row(
    name="nq_iops_tcp",
    title="net-queue's iops.py over TCP: 2 MiB one way after the other and both at once, 256 bytes both at once",
    notes=(*NOTES, *MEMORY),
    contenders=contenders("tcp"),
    jobs=[
        messages("sync 2 MiB", "sync", 21, 1_000),
        messages("async 2 MiB", "async", 21, 1_000),
        messages("async 256 B", "async", 8, 30_000),
    ],
    figures=FIGURES,
    comparisons=[
        Comparison("redpoll", "net-queue", "sync 2 MiB", "gigabits", bar=2.5),
        Comparison("redpoll", "net-queue", "async 2 MiB", "gigabits", bar=2),
        Comparison("redpoll", "net-queue", "async 256 B", "operations", bar=3),
        Comparison("redpoll", "net-queue", "sync 2 MiB", "grown", higher=False, bar=1),
        Comparison("redpoll", "net-queue", "async 2 MiB", "grown", higher=False, bar=1),
    ],
    measure=measure,
    prepare=prepare,
)
