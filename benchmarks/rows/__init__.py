"""The benchmarks by name."""

from benchmarks.model import Row
from benchmarks.rows import (
    acked_1,
    acked_64,
    acked_many,
    bystanders,
    comeback,
    crowd,
    idle_memory,
    large,
    pressure,
    queue_node,
    request_1,
    request_64,
    request_beside_bodies,
    strangers,
    stream,
    stream_64k,
    stream_asyncio,
    tls_acked_64,
    tls_idle_memory,
    tls_large,
    unacked_64,
)

_MODULES = (
    acked_64,
    acked_1,
    unacked_64,
    request_64,
    request_1,
    stream,
    stream_64k,
    stream_asyncio,
    large,
    idle_memory,
    acked_many,
    bystanders,
    request_beside_bodies,
    pressure,
    comeback,
    crowd,
    queue_node,
    strangers,
    tls_large,
    tls_acked_64,
    tls_idle_memory,
)

ROWS: dict[str, Row] = {module.ROW.name: module.ROW for module in _MODULES}
