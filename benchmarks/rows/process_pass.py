"""A function executed in another process and its result brought back, beside concurrent.futures."""

from benchmarks.control import Fields
from benchmarks.model import FUTURES, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

CONFIG = {"serializer": "msgpack"}
SERVER = {"config": {**CONFIG, "slots": 16}}

#: Figures of libchirp's documentation, of its author's machine, for the two jobs.
SEED = (
    "libchirp's documentation has, on a notebook of 2017: plain Python 3,500/s, single and pooled; libchirp by CFFI 18,000/s",
    "and 23,000/s; libchirp in C 55,000/s and 240,000/s. Pooled is 16 open.",
)


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    if not client["right"]:
        raise ValueError("a call had a wrong result")
    return {"rate": job.count / (client["finished"] - client["started"])}


ROW = Row(
    name="process_pass",
    title="process passes: a function called in another process with a small int, and its result; one caller, one worker",
    notes=(
        "redpoll: requests to a Node with a plain handler that finds the function by its name, serializer msgpack; from a",
        "Node, and from a thread by QueueNode, whose loop thread is uvloop's. concurrent.futures: submit and result of a",
        "ProcessPoolExecutor with one process, from a thread.",
        *SEED,
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "asyncio", "asyncio", "passes", {"api": "asyncio", "config": CONFIG}, SERVER)),
        Contender(REDPOLL, "thread", "thread", "passes", {"api": "thread", "config": CONFIG, "loop": "uvloop"}, SERVER),
        Contender(FUTURES, "ProcessPoolExecutor", "pool", "passes", {"api": "pool"}),
    ],
    jobs=[
        Job("1 open", 10_000, {"open": 1}, warm_up=1_000),
        Job("16 open", 40_000, {"open": 16}, warm_up=2_000),
    ],
    figures={"rate": Figure("calls/s")},
    comparisons=[
        Comparison("asyncio", "pool", "1 open", bar=1.5),
        Comparison("thread", "pool", "1 open", bar=1.2),
        Comparison("asyncio", "pool", "16 open", bar=4),
        Comparison("thread", "pool", "16 open", bar=3),
    ],
    measure=_measure,
)
