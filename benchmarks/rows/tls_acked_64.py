"""Acknowledged sends over TLS, 64 open, beside the same without TLS."""

from benchmarks.encryption import certificates
from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops

CONFIG = {"slots": 64}


def _redpoll(group: str, *, encrypted: bool) -> list[Contender]:
    return on_loops(
        Contender(
            REDPOLL,
            group,
            group,
            "redpoll",
            options={"encrypted": encrypted, "config": CONFIG},
            server={"work": "handler"},
            client={"work": "futures"},
        )
    )


ROW = Row(
    name="tls_acked_64",
    title="acknowledged sends of 5 bytes over TLS, 64 open, one sender, one receiver",
    notes=("Done when the receiver's handler has returned and the sender knows it. slots=64 on both sides.",),
    contenders=[*_redpoll("TLS", encrypted=True), *_redpoll("plain", encrypted=False)],
    jobs=[Job("5 B", 20_000, {"size": 5, "open": 64}, warm_up=2_000)],
    figures=RATE,
    comparisons=[Comparison("TLS", "plain", "5 B", bar=0.5)],
    measure=message_rate,
    prepare=certificates,
)
