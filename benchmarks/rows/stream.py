"""A one-way stream of small unacknowledged messages, beside pyzmq's PUSH and PULL."""

from benchmarks.model import RATE, Comparison, Job, Row, arrival_rate
from benchmarks.rows.streaming import ASYNC_FOR, BATCHES, HANDLER, pyzmq, redpoll

SIZES = {"1 B": (1, 1_000_000), "256 B": (256, 1_000_000), "4 KiB": (4_096, 50_000)}

#: Bars and aims of the ways of receiving, beside pyzmq up to 256 bytes.
BARS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("1 B", BATCHES): (1.3, 2),
    ("1 B", ASYNC_FOR): (0.9, 1.3),
    ("1 B", HANDLER): (None, None),
    ("256 B", BATCHES): (1.5, 2),
    ("256 B", ASYNC_FOR): (1.2, 1.5),
    ("256 B", HANDLER): (None, None),
}

ROW = Row(
    name="stream",
    title="a one-way stream of unacknowledged messages of 1 B, 256 B and 4 KiB",
    notes=(
        "From the first arrival until the receiver has taken the last. At 4 KiB any way of receiving counts.",
        'The sender makes a Message for each; with "one Message" it sends one again and again, as pyzmq\'s sends one',
        "bytes object.",
    ),
    contenders=[*redpoll(BATCHES), *redpoll(BATCHES, again=True), *redpoll(HANDLER), *redpoll(ASYNC_FOR), *pyzmq()],
    jobs=[Job(name, count, {"size": size}, warm_up=count // 20) for name, (size, count) in SIZES.items()],
    figures=RATE,
    comparisons=[
        *(Comparison(way, "pyzmq", size, bar=bar, aim=aim) for (size, way), (bar, aim) in BARS.items()),
        *(Comparison(f"{BATCHES}, one Message", "pyzmq", size) for size in ("1 B", "256 B")),
        *(Comparison(way, "pyzmq", "4 KiB", bar=1.5) for way in (BATCHES, HANDLER, ASYNC_FOR)),
    ],
    measure=arrival_rate,
)
