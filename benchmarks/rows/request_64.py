"""Requests and their answers, 64 open, beside nats-py."""

from benchmarks.model import NATS, RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops

ROW = Row(
    name="request_64",
    title="requests of 100 bytes and their answers, 64 open, one requester, one responder",
    notes=(
        "64 tasks that each await one request after the other. nats-py goes through a nats-server on this machine,",
        "as it must: three processes. The better of its loops counts, as with redpoll.",
    ),
    contenders=[
        *on_loops(
            Contender(
                REDPOLL,
                "slots=64",
                "redpoll",
                "redpoll",
                server={"work": "answer", "config": {"slots": 64}},
                client={"work": "request", "config": {}},
            )
        ),
        *on_loops(Contender(NATS, "", "nats-py", "nats")),
    ],
    jobs=[Job("100 B", 20_000, {"size": 100, "open": 64}, warm_up=2_000)],
    figures=RATE,
    comparisons=[Comparison("redpoll", "nats-py", "100 B", bar=2.2, aim=3)],
    measure=message_rate,
)
