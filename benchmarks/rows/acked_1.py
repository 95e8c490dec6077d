"""Acknowledged sends, one open, beside libchirp's Python binding."""

from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops
from benchmarks.rows import chirp_peer

ROW = Row(
    name="acked_1",
    title="acknowledged sends of 5 bytes, one open, one sender, one receiver",
    notes=("Each is awaited before the next is begun: the round trip.", *chirp_peer.NOTES),
    contenders=[
        *on_loops(
            Contender(
                REDPOLL,
                "default Config",
                "redpoll",
                "redpoll",
                server={"work": "handler", "config": {}},
                client={"work": "futures", "config": {}},
            )
        ),
        chirp_peer.ACKNOWLEDGED,
    ],
    jobs=[Job("5 B", 10_000, {"size": 5, "open": 1}, warm_up=1_000)],
    figures=RATE,
    comparisons=[Comparison("redpoll", "libchirp", "5 B", bar=1.5)],
    measure=message_rate,
)
