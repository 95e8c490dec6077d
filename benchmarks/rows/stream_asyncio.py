"""A one-way stream of small unacknowledged messages taken by await, beside zmq.asyncio."""

from benchmarks.model import RATE, Comparison, Job, Row, message_rate
from benchmarks.rows.streaming import ASYNC_FOR, redpoll, zmq_asyncio

SIZES = {"1 B": 1, "256 B": 256}

ROW = Row(
    name="stream_asyncio",
    title="a one-way stream of unacknowledged messages of 1 B and 256 B, each taken by an await of its own",
    notes=("zmq.asyncio receives from a blocking pyzmq sender, which is the faster one; redpoll by async for.",),
    contenders=[*redpoll(ASYNC_FOR), *zmq_asyncio()],
    jobs=[Job(name, 50_000, {"size": size}, warm_up=5_000) for name, size in SIZES.items()],
    figures=RATE,
    comparisons=[Comparison(ASYNC_FOR, "zmq.asyncio", size, bar=8) for size in SIZES],
    measure=message_rate,
)
