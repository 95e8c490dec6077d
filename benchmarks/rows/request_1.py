"""The time of one request and its answer, beside pyzmq."""

from collections.abc import Sequence

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import PYZMQ, REDPOLL, UVLOOP, Comparison, Contender, Figure, Figures, Job, Row, on_loops

#: Bytes of a request of one byte and of its answer on the wire: a preamble of 27 each, and the deadline's 9.
_BYTES = {"request_bytes": 37, "answer_bytes": 28}


def _redpoll(group: str, setting: str, **config: object) -> list[Contender]:
    server, client = {"work": "answer", "config": config}, {"work": "request one", "config": config}
    return on_loops(Contender(REDPOLL, setting, group, "redpoll", server=server, client=client))


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {**_percentiles(client["taken"]), "used": client["used"] / job.count}


def _pool(answers: Sequence[Fields]) -> Figures:
    figures = _percentiles([taken for answer in answers for taken in answer["taken"]])
    del figures["median"]  # that one is the median of the rounds
    return figures


def _percentiles(taken: list[int]) -> Figures:
    ordered = sorted(taken)
    return {name: percentile(ordered, percent) * 1e-9 for name, percent in _PERCENTS.items()}


_PERCENTS = {"median": 50.0, "p99": 99.0, "p99.9": 99.9}

ROW = Row(
    name="request_1",
    title="round trip of a request of 1 byte and its answer, one open",
    notes=(
        "p99 and p99.9 are those of all rounds together (100,000 requests by default), without a ratio per round.",
        "pyzmq: REQ and REP, blocking, and by zmq.asyncio on either loop. spin: Config.spin at both ends. The bare echo is a",
        "protocol of uvloop that moves as many bytes. CPU: processor time of the client's process for one request.",
    ),
    contenders=[
        *_redpoll("redpoll", "default Config"),
        *_redpoll("spin", "spin=200", spin=200),
        Contender(UVLOOP, "bare echo", "echo", "echo", {**_BYTES, "loop": "uvloop"}, loop="uvloop"),
        Contender(PYZMQ, "REQ/REP blocking", "blocking", "pyzmq", {"pattern": "request", "api": "blocking"}),
        *on_loops(Contender(PYZMQ, "REQ/REP asyncio", "asyncio", "pyzmq", {"pattern": "request", "api": "asyncio"})),
    ],
    jobs=[Job("1 B", 20_000, {"size": 1}, warm_up=1_000)],
    figures={
        "median": Figure("median us", 1e6, 1),
        "p99": Figure("p99 us", 1e6, 1),
        "p99.9": Figure("p99.9 us", 1e6, 1),
        "used": Figure("CPU us", 1e6, 1),
    },
    comparisons=[
        Comparison("redpoll", "blocking", "1 B", "median", higher=False, bar=0.95, aim=0.85),
        Comparison("redpoll", "asyncio", "1 B", "median", higher=False, bar=0.65),
        Comparison("redpoll", "echo", "1 B", "median", higher=False, bar=1.3, aim=1.15),
        Comparison("spin", "blocking", "1 B", "median", higher=False, bar=0.9, aim=0.6),
        Comparison("spin", "redpoll", "1 B", "used", higher=False, by="median"),
        Comparison("redpoll", "blocking", "1 B", "p99", higher=False, bar=1.2, by="median"),
        Comparison("redpoll", "blocking", "1 B", "p99.9", higher=False, bar=1.2, by="median"),
    ],
    measure=_measure,
    pool=_pool,
)
