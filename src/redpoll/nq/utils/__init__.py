"""What programs find below `net_queue.utils`: streams and serializers."""

from redpoll.nq.utils import stream

__all__ = ["stream"]
