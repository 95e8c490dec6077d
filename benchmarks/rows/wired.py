"""Shared by the benchmarks of wiring: the five sizes of the first ØMQ module's table, and the ways to send and receive."""

from benchmarks.model import REDPOLL, SOCKETS, Contender, on_loops

#: Of the table in the module's documentation.
SIZES = {"1 B": 1, "16 B": 16, "256 B": 256, "4 KiB": 4_096, "64 KiB": 65_536}

#: Messages of one job, by size: about a second of each.
COUNTS = {"1 B": 1_000_000, "16 B": 1_000_000, "256 B": 500_000, "4 KiB": 100_000, "64 KiB": 20_000}

#: That module's own figures of throughput at the two sizes that its network did not limit, messages a second.
SEED_PYTHON = {"1 B": 1_332_219, "16 B": 1_340_277}

#: Ways to send messages, and to receive them.
WAYS = {
    "await each": ("each", "each"),
    "async for": ("each", "async for"),
    "send_nowait, async for": ("nowait", "async for"),
    "send_many, receive_many": ("many", "many"),
}


def wiring(way: str, group: str, **options: object) -> list[Contender]:
    """Return redpoll's wiring in one of its ways, on either loop."""
    send, receive = WAYS[way]
    common = {"work": "stream", **options}
    return on_loops(
        Contender(REDPOLL, way, group, "wiring", common, server={"receive": receive}, client={"send": send})
    )


def sockets(work: str, **options: object) -> Contender:
    """Return blocking sockets without frames: the limit, not another library."""
    return Contender(SOCKETS, "raw TCP", "sockets", "sockets", {"work": work, **options})
