"""Messages from one exchange to one queue, beside pyzmq's PUSH and PULL and the first ØMQ module's own table."""

from benchmarks.control import Fields
from benchmarks.model import Comparison, Figure, Figures, Job, Row, message_rate
from benchmarks.rows.streaming import pyzmq
from benchmarks.rows.wired import COUNTS, SEED_PYTHON, SIZES, WAYS, sockets, wiring

#: The bars beside pyzmq.
BARS = {"1 B": 0.8, "16 B": 0.8, "256 B": 1.2, "4 KiB": 1.5, "64 KiB": 2.0}

#: The way that is held against the bars: a call for each message at both ends, as with pyzmq.
JUDGED = "async for"


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    rate = message_rate(job, client, server)["rate"]
    return {"rate": rate, "megabits": rate * job.fields["size"] * 8e-6}


ROW = Row(
    name="wiring_throughput",
    title="an exchange in one process, a queue in another: messages of 1 B to 64 KiB one way",
    notes=(
        "From the first send until the receiver has taken the last. pyzmq: PUSH and PULL, blocking. Raw TCP: blocking",
        "sockets that carry the bytes of the messages 64 KiB at a time; nobody takes them apart.",
        "Without a peer: messages a second, beside the Python column of the table of the first ØMQ module (1 and 16 B).",
    ),
    contenders=[
        *(contender for way in WAYS for contender in wiring(way, way)),
        *pyzmq(),
        sockets("batches"),
    ],
    jobs=[Job(name, COUNTS[name], {"size": size}, warm_up=COUNTS[name] // 20) for name, size in SIZES.items()],
    figures={"rate": Figure("messages/s"), "megabits": Figure("Mbit/s", digits=1)},
    comparisons=[
        *(Comparison(JUDGED, "pyzmq", name, bar=bar, aim=1.0 if bar < 1 else None) for name, bar in BARS.items()),
        *(Comparison(way, "pyzmq", name) for name in BARS for way in WAYS if way != JUDGED),
        *(Comparison(JUDGED, None, name, bar=rate) for name, rate in SEED_PYTHON.items()),
        *(Comparison(JUDGED, "sockets", name, "megabits") for name in SIZES),
    ],
    measure=_measure,
)
