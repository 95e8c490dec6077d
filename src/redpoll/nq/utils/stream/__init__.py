"""Streams, and the serializers that make and read them."""

from redpoll.nq.utils.stream.pickled import PickleSerializer
from redpoll.nq.utils.stream.view import Stream

__all__ = ["PickleSerializer", "Stream"]
