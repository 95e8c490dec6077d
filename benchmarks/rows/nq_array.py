"""The memory that one large array takes beside itself, at the end that puts it and at the one that gets it."""

from benchmarks.control import Fields
from benchmarks.model import NETQUEUE, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row

ARRAY = "256 MiB"


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    size = job.count << 20
    if server["size"] != size or not server["right"]:
        raise ValueError(f"an array of {size} bytes arrived as another of {server['size']}")
    return {
        "sender": max(0, client["grown"]),
        "receiver": max(0, server["grown"]) / size,
        "gigabits": size * 8e-9 / (client["finished"] - client["started"]),
    }


ROW = Row(
    name="nq_array",
    title="growth of resident memory, at most, while an array of 256 MiB is put over TCP, until its future is done",
    notes=(
        "At the sender beside the array itself; at the receiver with it, as a multiple of its size. The count is that of",
        "MiB of the array. Gbit/s: until the future is done, which net-queue's is when the last byte was written.",
    ),
    contenders=[
        Contender(REDPOLL, "nq", "redpoll", "queues", {"library": "redpoll", "work": "array"}),
        Contender(NETQUEUE, "", "net-queue", "queues", {"library": "net-queue", "work": "array"}),
    ],
    jobs=[Job(ARRAY, 256, {}, warm_up=1)],
    figures={
        "sender": Figure("sender MiB", 1 / (1 << 20), 2),
        "receiver": Figure("receiver x size", 1, 3),
        "gigabits": Figure("Gbit/s", 1, 1),
    },
    comparisons=[
        Comparison("redpoll", None, ARRAY, "sender", higher=False, bar=2),
        Comparison("redpoll", None, ARRAY, "receiver", higher=False, bar=1.05),
        Comparison("redpoll", "net-queue", ARRAY, "gigabits"),
    ],
    measure=_measure,
)
