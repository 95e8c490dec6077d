"""libchirp at its best setting, which is the queue interface on both ends."""

from benchmarks.model import LIBCHIRP, Contender

NOTES = (
    "libchirp through its queue interface at both ends, which is faster than its asyncio interface; it sends the",
    "same 64 message objects again and again, redpoll makes a new Message for each send.",
)

ACKNOWLEDGED = Contender(LIBCHIRP, "queue", "libchirp", "libchirp", {"api": "queue", "acknowledge": True})

#: 32 slots are the most that libchirp has, and faster than its default of 16.
UNACKNOWLEDGED = Contender(
    LIBCHIRP, "queue slots=32", "libchirp", "libchirp", {"api": "queue", "acknowledge": False, "slots": 32}
)
