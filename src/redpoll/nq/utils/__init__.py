"""Names that programs import from `net_queue.utils`: streams and serializers."""

from redpoll.nq.utils import stream

__all__ = ["stream"]
