"""Shared by the stream benchmarks: the ways of receiving, and pyzmq's settings."""

from benchmarks.model import PYZMQ, REDPOLL, Contender, on_loops

#: Options of the receiver of a stream: many may be handled and on their way at a time.
RECEIVER = {"acknowledge": False, "slots": 4_096, "node_slots": 4_096, "window": 16_384, "window_bytes": 16 << 20}
SENDER = {"acknowledge": False}

#: The ways of receiving by redpoll.
BATCHES, HANDLER, ASYNC_FOR = "batches", "handler", "async for"


def redpoll(way: str, serializer: str = "raw", *, again: bool = False) -> list[Contender]:
    """Return redpoll receiving in one of its ways, on either loop.

    Args:
        way: How it receives.
        serializer: On both ends.
        again: Whether the sender sends one `Message` again and again, as pyzmq's sends one bytes object, instead of
            making one for each.
    """
    name = f"{way}, one Message" if again else way
    return on_loops(
        Contender(
            REDPOLL,
            name,
            name,
            "redpoll",
            server={"work": way, "config": {**RECEIVER, "serializer": serializer}, "batch": 1_024},
            client={"work": "many", "again": again, "config": {**SENDER, "serializer": serializer}},
        )
    )


def pyzmq() -> list[Contender]:
    """Return pyzmq's blocking PUSH and PULL in both settings of its high-water mark."""
    settings: dict[str, dict[str, object]] = {"default HWM": {}, "HWM 0": {"high_water_mark": 0}}
    return [
        Contender(PYZMQ, f"PUSH/PULL {name}", "pyzmq", "pyzmq", {"pattern": "stream", "api": "blocking", **options})
        for name, options in settings.items()
    ]


def zmq_asyncio() -> list[Contender]:
    """Return zmq.asyncio's PULL behind a blocking PUSH, on either loop."""
    options = {"pattern": "stream", "api": "asyncio"}
    return on_loops(Contender(PYZMQ, "PUSH/PULL asyncio", "zmq.asyncio", "pyzmq", options))
