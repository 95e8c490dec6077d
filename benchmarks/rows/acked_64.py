"""Acknowledged sends, 64 open, beside libchirp's Python binding."""

from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops
from benchmarks.rows import chirp_peer


def _redpoll(setting: str, work: str, config: dict[str, object]) -> list[Contender]:
    return on_loops(
        Contender(
            REDPOLL,
            setting,
            setting,
            "redpoll",
            server={"work": work, "config": config},
            client={"work": "futures", "config": config},
        )
    )


ROW = Row(
    name="acked_64",
    title="acknowledged sends of 5 bytes, 64 open, one sender, one receiver",
    notes=(
        "Done when the receiver's handler has returned and the sender knows it.",
        *chirp_peer.NOTES,
    ),
    contenders=[
        *_redpoll("slots=64", "handler", {"slots": 64}),
        *_redpoll("default Config", "handler", {}),
        *_redpoll("slots=64 async handler", "async handler", {"slots": 64}),
        chirp_peer.ACKNOWLEDGED,
    ],
    jobs=[Job("5 B", 20_000, {"size": 5, "open": 64}, warm_up=2_000)],
    figures=RATE,
    comparisons=[
        Comparison("slots=64", "libchirp", "5 B", bar=18, aim=25),
        Comparison("default Config", "libchirp", "5 B", bar=10),
        Comparison("slots=64 async handler", "libchirp", "5 B"),
    ],
    measure=message_rate,
)
