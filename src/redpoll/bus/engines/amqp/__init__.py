"""The engine ``amqp://``: RabbitMQ."""

from redpoll.bus.engines.amqp.options import open_engine

__all__ = ["open_engine"]
