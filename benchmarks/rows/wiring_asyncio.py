"""Messages from one exchange to one queue, each message by an await of its own, beside zmq.asyncio."""

from benchmarks.model import RATE, Comparison, Job, Row, message_rate
from benchmarks.rows.streaming import zmq_asyncio
from benchmarks.rows.wired import COUNTS, SIZES, wiring

#: The bars beside zmq.asyncio.
BARS = {"1 B": 5.0, "16 B": 5.0, "256 B": 5.0, "4 KiB": 2.0, "64 KiB": 2.0}

ROW = Row(
    name="wiring_asyncio",
    title="an exchange in one process, a queue in another: messages of 1 B to 64 KiB one way, an await for each",
    notes=(
        "zmq.asyncio receives from a blocking pyzmq sender, which is the faster one; redpoll awaits each send and each",
        "receive.",
    ),
    contenders=[*wiring("await each", "redpoll"), *zmq_asyncio()],
    jobs=[Job(name, COUNTS[name] // 5, {"size": size}, warm_up=COUNTS[name] // 50) for name, size in SIZES.items()],
    figures=RATE,
    comparisons=[Comparison("redpoll", "zmq.asyncio", name, bar=bar) for name, bar in BARS.items()],
    measure=message_rate,
)
