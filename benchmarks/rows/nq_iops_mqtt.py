"""net-queue's own iops.py over MQTT, with net-queue and with redpoll."""

from benchmarks.model import Comparison, Row
from benchmarks.rows.iops import FIGURES, MEMORY, NOTES, contenders, measure, messages, prepare

JOBS = [messages("sync 2 MiB", "sync", 21, 500), messages("async 2 MiB", "async", 21, 500)]

ROW = Row(
    name="nq_iops_mqtt",
    title="net-queue's iops.py over MQTT by mosquitto: 2 MiB one way after the other and both at once",
    notes=(
        *NOTES,
        "A mosquitto on this machine, with the same settings for both. net-queue's server takes up to a second more to",
        "close, which is in its own figure alone. Its documentation has 8 GB of memory, with 4,000 messages.",
        *MEMORY,
    ),
    contenders=contenders("mqtt"),
    jobs=JOBS,
    figures=FIGURES,
    comparisons=[
        *(Comparison("redpoll", "net-queue", job.name, "gigabits", bar=1.2) for job in JOBS),
        *(Comparison("redpoll", None, job.name, "peak", higher=False, bar=150) for job in JOBS),
        *(Comparison("redpoll", "net-queue", job.name, "peak", higher=False) for job in JOBS),
    ],
    measure=measure,
    prepare=prepare,
)
