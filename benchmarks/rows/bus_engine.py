"""Tasks and calls through the memory engine of the bus, without a pattern, beside asyncio.Queue with futures."""

from benchmarks.model import ASYNCIO, REDPOLL, Comparison, Contender, Figure, Job, Row, message_rate, on_loops

ROW = Row(
    name="bus_engine",
    title="bus in process, the engine alone: tasks of 100 bytes and calls to their outcome; 64 open, and one",
    notes=(
        "redpoll: MemoryEngine, publish with a watcher that settles a future, a sink that ends each delivery; outcomes of",
        "tasks are kept, calls have a deadline and are accepted. asyncio: put_nowait of the data and a future, one consumer.",
        "As many callers as are open, each with one at a time. Time of the processor.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "engine", "engine", "bus_engine", {"work": "engine"})),
        *on_loops(Contender(ASYNCIO, "Queue", "queue", "bus_engine", {"work": "queue"})),
    ],
    jobs=[
        Job("task, 64 open", 64_000, {"open": 64, "kind": "task"}, warm_up=3_200),
        Job("call, 64 open", 64_000, {"open": 64, "kind": "call"}, warm_up=3_200),
        Job("call, 1 open", 20_000, {"open": 1, "kind": "call"}, warm_up=1_000),
    ],
    figures={"rate": Figure("per second")},
    comparisons=[
        Comparison("engine", "queue", "task, 64 open", bar=0.15),
        Comparison("engine", "queue", "call, 64 open", bar=0.2),
        Comparison("engine", "queue", "call, 1 open", bar=0.2),
    ],
    measure=message_rate,
)
