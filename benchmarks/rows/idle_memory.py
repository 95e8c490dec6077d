"""Resident memory of an idle connection, beside bare asyncio and uvloop protocols."""

from benchmarks.control import Fields
from benchmarks.model import ASYNCIO, REDPOLL, UVLOOP, Comparison, Contender, Figure, Figures, Job, Row, on_loops

CONFIG = {"max_connections": 10_000, "max_connections_per_host": 10_000}
KIBIBYTE = 1 / 1024


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"bytes": server["bytes_each"]}


def _redpoll(group: str, client_module: str, client: dict[str, object]) -> list[Contender]:
    server = {"work": "hold", "config": CONFIG}
    return on_loops(
        Contender(REDPOLL, group, group, "redpoll", server=server, client=client, client_module=client_module)
    )


ROW = Row(
    name="idle_memory",
    title="resident memory of the listening process for each of 4,000 idle plain connections",
    notes=(
        "libchirp-like peers: raw sockets that shook hands, each with an identity of its own; redpoll peers: nodes",
        "that announced themselves. The bare protocols share one receive buffer and do nothing else.",
        "What the kernel holds for a socket is not in it.",
    ),
    contenders=[
        *_redpoll("libchirp-like peers", "connections", {}),
        *_redpoll("redpoll peers", "redpoll", {"work": "connect", "config": {}}),
        Contender(ASYNCIO, "bare protocol", "bare asyncio", "connections", {"loop": "asyncio"}),
        Contender(UVLOOP, "bare protocol", "bare uvloop", "connections", {"loop": "uvloop"}),
    ],
    jobs=[Job("idle", 4_000, {}, warm_up=100)],
    figures={"bytes": Figure("KiB each", KIBIBYTE, 2)},
    comparisons=[
        Comparison(group, against, "idle", "bytes", higher=False, bar=8 if against is None else None)
        for group in ("libchirp-like peers", "redpoll peers")
        for against in (None, "bare uvloop")
    ],
    measure=_measure,
)
