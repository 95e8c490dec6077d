"""Tasks of the bus, submitted, handled and answered in one process, beside asyncio.Queue with futures, and taskiq."""

from benchmarks.model import ASYNCIO, REDPOLL, TASKIQ, Comparison, Contender, Figure, Job, Row, message_rate, on_loops

ROW = Row(
    name="bus_tasks",
    title="tasks of 100 bytes in process: submit, handler, result; 64 open, and one",
    notes=(
        "redpoll: memory engine, bus.tasks.run to a worker with 64 slots and a coroutine function, which reads the data and",
        "returns it; results are kept. asyncio workers: put_nowait of the data and a future, 64 coroutines that get,",
        "await the same function and settle the future. asyncio Queue: one that settles it without a handler.",
        "taskiq: InMemoryBroker, which has no queue; it runs a task where it is sent, or beside that, and whoever waits for",
        "the result asks without a pause; the better counts. Its data are text: JSON has no bytes.",
        "As many callers as are open, each with one at a time. Time of the processor.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "tasks", "tasks", "bus_tasks", {"work": "tasks"})),
        *on_loops(Contender(ASYNCIO, "workers", "workers", "bus_tasks", {"work": "workers"})),
        *on_loops(Contender(ASYNCIO, "Queue", "queue", "bus_tasks", {"work": "queue"})),
        *on_loops(Contender(TASKIQ, "in place", "taskiq", "bus_taskiq", {"work": "in place"})),
        *on_loops(Contender(TASKIQ, "beside", "taskiq", "bus_taskiq", {"work": "beside"})),
    ],
    jobs=[
        Job("64 open", 32_000, {"open": 64}, warm_up=3_200),
        Job("1 open", 10_000, {"open": 1}, warm_up=1_000),
    ],
    figures={"rate": Figure("per second")},
    comparisons=[
        Comparison("tasks", "workers", "64 open", bar=0.15),
        Comparison("tasks", "queue", "64 open"),
        Comparison("tasks", "taskiq", "64 open", bar=2.0),
        Comparison("tasks", "workers", "1 open"),
    ],
    measure=message_rate,
)
