"""Calls of the bus, answered in the same process, beside asyncio.Queue with futures."""

from benchmarks.model import ASYNCIO, REDPOLL, Comparison, Contender, Figure, Job, Row, message_rate, on_loops

ROW = Row(
    name="bus_rpc",
    title="calls in process: a method of two numbers, its answer; 64 open, and one",
    notes=(
        "redpoll: memory engine, a method of a client to a coroutine function of a server; arguments and answers are",
        "MessagePack. asyncio Queue: a bare put_nowait of a number and a future, one consumer that settles it. asyncio",
        "workers: 64 coroutines that get, await the same function and settle the future. Time of the processor.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "rpc", "rpc", "bus_rpc", {"work": "bus"})),
        *on_loops(Contender(ASYNCIO, "Queue", "queue", "bus_rpc", {"work": "queue", "workers": 0})),
        *on_loops(Contender(ASYNCIO, "workers", "workers", "bus_rpc", {"work": "queue", "workers": 64})),
    ],
    jobs=[
        Job("64 open", 32_000, {"open": 64}, warm_up=3_200),
        Job("1 open", 10_000, {"open": 1}, warm_up=1_000),
    ],
    figures={"rate": Figure("calls/s")},
    comparisons=[
        Comparison("rpc", "queue", "64 open", bar=0.2),
        Comparison("rpc", "queue", "1 open", bar=0.2),
        Comparison("rpc", "workers", "64 open"),
        Comparison("rpc", "workers", "1 open"),
    ],
    measure=message_rate,
)
