"""Engines, by their protocol alone."""

from redpoll.testing.conformance.engine import deliveries, queues, steps

__all__ = ["deliveries", "queues", "steps"]
