"""net-queue's own iops.py over TLS, with net-queue and with redpoll."""

from benchmarks.model import Comparison, Row
from benchmarks.rows.iops import FIGURES, MEMORY, NOTES, contenders, measure, messages, prepare

ROW = Row(
    name="nq_iops_tls",
    title="net-queue's iops.py over TCP with TLS: 2 MiB one way after the other and both at once",
    notes=(*NOTES, "Both with the same self-signed certificate of the server.", *MEMORY),
    contenders=contenders("tcp", encrypted=True),
    jobs=[messages("sync 2 MiB", "sync", 21, 500), messages("async 2 MiB", "async", 21, 500)],
    figures=FIGURES,
    comparisons=[
        Comparison("redpoll", "net-queue", "sync 2 MiB", "gigabits", bar=1.5),
        Comparison("redpoll", "net-queue", "async 2 MiB", "gigabits"),
    ],
    measure=measure,
    prepare=prepare,
)
