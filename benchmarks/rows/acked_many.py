"""Acknowledged sends with more and more open, beside redpoll itself with 64."""

from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops

OPEN = (64, 1_024, 10_000)


def _name(count: int) -> str:
    return f"{count:,} open"


ROW = Row(
    name="acked_many",
    title="acknowledged sends of 5 bytes, 64, 1,024 and 10,000 open, one sender, one receiver, slots=64",
    notes=("Many open sends wait in their queue for a place in the window of 64: they should cost what few cost.",),
    contenders=[
        contender
        for count in OPEN
        for contender in on_loops(
            Contender(
                REDPOLL,
                _name(count),
                _name(count),
                "redpoll",
                server={"work": "handler", "config": {"slots": 64}},
                client={"work": "futures", "config": {}, "open": count},
            )
        )
    ],
    jobs=[Job("5 B", 60_000, {"size": 5}, warm_up=10_000)],
    figures=RATE,
    comparisons=[Comparison(_name(count), _name(64), "5 B", bar=0.9) for count in OPEN[1:]],
    measure=message_rate,
)
