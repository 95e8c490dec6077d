"""Acknowledged sends from a thread, 64 open, beside libchirp's queue interface."""

from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate
from benchmarks.rows import chirp_peer


def _redpoll(setting: str, config: dict[str, object]) -> Contender:
    return Contender(REDPOLL, setting, setting, "blocking", {"config": config})


ROW = Row(
    name="queue_node",
    title="acknowledged sends of 5 bytes from a thread, 64 open, one sender, one receiver",
    notes=(
        "QueueNode at both ends: `send` and the results of its futures in one thread, `get` in one thread, which releases",
        "the message before. The loop thread is uvloop's. Beside it the same sender to a Node with a handler.",
        *chirp_peer.NOTES,
    ),
    contenders=[
        _redpoll("slots=64", {"slots": 64}),
        _redpoll("default Config", {}),
        Contender(
            REDPOLL,
            "to a Node",
            "to a Node",
            "redpoll",
            {"config": {"slots": 64}, "loop": "uvloop"},
            server={"work": "handler"},
            client_module="blocking",
        ),
        chirp_peer.ACKNOWLEDGED,
    ],
    jobs=[Job("5 B", 20_000, {"size": 5, "open": 64}, warm_up=2_000)],
    figures=RATE,
    comparisons=[
        Comparison("slots=64", "libchirp", "5 B", bar=6),
        Comparison("default Config", "libchirp", "5 B"),
        Comparison("to a Node", "libchirp", "5 B", bar=6),
    ],
    measure=message_rate,
)
