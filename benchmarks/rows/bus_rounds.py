"""kiwiPy's rounds of 100 tasks, beside its communicator that stays in one process."""

from benchmarks.model import KIWIPY, REDPOLL, Comparison, Contender, Figure, Job, Row, message_rate, on_loops

ROW = Row(
    name="bus_rounds",
    title="kiwiPy's rounds: 100 tasks of 1 KiB sent, then their results got, in process",
    notes=(
        "redpoll: memory engine, a worker with 100 slots and a coroutine function; each task is submitted by itself, or all",
        "100 by submit_many; results are kept. kiwiPy: LocalCommunicator, which has no queue: it calls its subscriber, a",
        "plain function, while it sends, and writes no bytes. Time of the processor.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "submit", "submit", "bus_rounds", {"work": "submit"})),
        *on_loops(Contender(REDPOLL, "submit_many", "submit_many", "bus_rounds", {"work": "submit_many"})),
        Contender(KIWIPY, "LocalCommunicator", "kiwipy", "bus_rounds", {"work": "kiwipy"}),
    ],
    jobs=[Job("rounds of 100", 20_000, {}, warm_up=2_000)],
    figures={"rate": Figure("tasks per second")},
    comparisons=[
        Comparison("submit", "kiwipy", "rounds of 100"),
        Comparison("submit_many", "kiwipy", "rounds of 100"),
    ],
    measure=message_rate,
)
