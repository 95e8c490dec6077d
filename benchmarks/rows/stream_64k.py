"""A one-way stream of unacknowledged messages of 64 KiB, beside pyzmq's PUSH and PULL."""

from benchmarks.model import RATE, Comparison, Job, Row, message_rate
from benchmarks.rows.streaming import ASYNC_FOR, BATCHES, HANDLER, pyzmq, redpoll

ROW = Row(
    name="stream_64k",
    title="a one-way stream of unacknowledged messages of 64 KiB, serializer buffer",
    notes=("From the first send until the receiver has taken the last. Any way of receiving counts.",),
    contenders=[
        *(each for way in (BATCHES, HANDLER, ASYNC_FOR) for each in redpoll(way, "buffer")),
        *pyzmq(),
    ],
    jobs=[Job("64 KiB", 6_000, {"size": 65_536}, warm_up=500)],
    figures=RATE,
    comparisons=[Comparison(way, "pyzmq", "64 KiB", bar=1.5) for way in (BATCHES, HANDLER, ASYNC_FOR)],
    measure=message_rate,
)
