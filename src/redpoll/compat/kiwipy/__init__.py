"""kiwiPy's communicators on any engine: ``redpoll.compat.kiwipy.connect("redpoll://127.0.0.1")``.

The public names of `kiwipy.rmq` 0.9, with its arguments and the exceptions of `kiwipy`. It needs kiwiPy, and neither aio-pika
nor RabbitMQ: install ``redpoll[kiwipy]``.
"""

from redpoll.compat.kiwipy import defaults
from redpoll.compat.kiwipy.communicator import RmqCommunicator, async_connect
from redpoll.compat.kiwipy.connection import Connection, connect_robust
from redpoll.compat.kiwipy.install import install
from redpoll.compat.kiwipy.tasks import RmqIncomingTask, RmqTaskPublisher, RmqTaskQueue, RmqTaskSubscriber
from redpoll.compat.kiwipy.threads import RmqThreadCommunicator, RmqThreadIncomingTask, RmqThreadTaskQueue, connect

__all__ = [
    "Connection",
    "RmqCommunicator",
    "RmqIncomingTask",
    "RmqTaskPublisher",
    "RmqTaskQueue",
    "RmqTaskSubscriber",
    "RmqThreadCommunicator",
    "RmqThreadIncomingTask",
    "RmqThreadTaskQueue",
    "async_connect",
    "connect",
    "connect_robust",
    "defaults",
    "install",
]
