"""The rate to a good peer while two others do badly, beside the rate without them."""

from benchmarks.model import RATE, REDPOLL, Comparison, Contender, Job, Row, message_rate, on_loops

ROW = Row(
    name="bystanders",
    title="acknowledged sends of 5 bytes to a good peer, 64 open, while 64 wait for a frozen peer and 64 for a slow one",
    notes=(
        "The frozen peer shakes hands, announces itself and never reads again; the slow one takes a message a second.",
        "What fails for the frozen peer is sent again at once.",
    ),
    contenders=[
        contender
        for setting in ("undisturbed", "disturbed")
        for contender in on_loops(Contender(REDPOLL, setting, setting, "bystanders", {"setting": setting}))
    ],
    jobs=[Job("5 B", 200_000, {"size": 5, "open": 64}, warm_up=2_000)],
    figures=RATE,
    comparisons=[Comparison("disturbed", "undisturbed", "5 B", bar=0.9)],
    measure=message_rate,
)
