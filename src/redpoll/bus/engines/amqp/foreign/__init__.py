"""Exchanges, queues and wire formats on RabbitMQ that are not redpoll's."""

from redpoll.bus.engines.amqp.foreign.foreign import Foreign, ForeignConsumer, ForeignMessage
from redpoll.bus.engines.amqp.foreign.messages import Exchange, Queue
from redpoll.bus.engines.amqp.wire import Properties

__all__ = ["Exchange", "Foreign", "ForeignConsumer", "ForeignMessage", "Properties", "Queue"]
