"""The time of a message to a queue in another process and back, beside pyzmq's REQ and REP and raw TCP."""

from collections.abc import Sequence

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import PYZMQ, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.rows.wired import SIZES, sockets


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return _percentiles(client["taken"])


def _pool(answers: Sequence[Fields]) -> Figures:
    figures = _percentiles([taken for answer in answers for taken in answer["taken"]])
    del figures["median"]  # that one is the median of the rounds
    return figures


def _percentiles(taken: list[int]) -> Figures:
    ordered = sorted(taken)
    # One way is half of there and back.
    return {name: percentile(ordered, percent) * 0.5e-9 for name, percent in {"median": 50.0, "p99": 99.0}.items()}


ROW = Row(
    name="wiring_latency",
    title="one way of a message of 1 B to 64 KiB to a queue in another process, one at a time: half of there and back",
    notes=(
        "Two exchanges, two queues, as in the latency programs of the first ØMQ module. p99 is that of all rounds",
        "together. spin: Config.spin of both wirings. pyzmq: REQ and REP, blocking. Raw TCP: blocking sockets that send the",
        "message back.",
        "Against raw TCP at 1 B it is the difference that counts, in microseconds.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "wiring", "redpoll", "wiring", {"work": "echo"})),
        *on_loops(Contender(REDPOLL, "spin=200", "spin", "wiring", {"work": "echo", "spin": 200})),
        Contender(PYZMQ, "REQ/REP blocking", "pyzmq", "pyzmq", {"pattern": "request", "api": "blocking"}),
        sockets("echo"),
    ],
    jobs=[Job(name, 5_000, {"size": size}, warm_up=500) for name, size in SIZES.items()],
    figures={"median": Figure("median us", 1e6, 1), "p99": Figure("p99 us", 1e6, 1)},
    comparisons=[
        *(Comparison("redpoll", "pyzmq", name, "median", higher=False, bar=1.5) for name in SIZES),
        *(Comparison("spin", "pyzmq", name, "median", higher=False, bar=1.0) for name in SIZES),
        *(Comparison("redpoll", "pyzmq", name, "p99", higher=False, by="median") for name in SIZES),
        Comparison("redpoll", "sockets", "1 B", "median", higher=False, bar=10.0, difference=True),
        *(
            Comparison("redpoll", "sockets", name, "median", higher=False, difference=True)
            for name in SIZES
            if name != "1 B"
        ),
    ],
    measure=_measure,
    pool=_pool,
)
