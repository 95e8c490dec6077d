"""``bus.foreign`` of `redpoll.blocking`: exchanges and queues that are not redpoll's, for threads."""

from __future__ import annotations

import threading

import pytest

from redpoll import blocking
from redpoll.bus.engines.amqp.foreign import Exchange, Properties, Queue
from redpoll.errors import Closed, NoRoute, Unsupported
from tests.rabbitmq import Broker

LOGS = Exchange("logs", durable=True)
AUDIT = Queue("audit", ((LOGS, "app.#"),), durable=True)


@pytest.mark.broker
def test_messages_pass(rabbitmq: Broker) -> None:
    """A thread declares, publishes, consumes, acknowledges and deletes, as a coroutine does."""
    with blocking.connect(rabbitmq.url) as bus:
        foreign = bus.foreign
        foreign.declare(AUDIT)
        properties = Properties(content_type="text/plain", headers={"user": "ada"})
        foreign.publish(b"one", exchange="logs", key="app.error", properties=properties)
        foreign.publish.future(b"two", key="audit").result(20)
        with foreign.consume("audit", credit=1) as messages:
            assert (messages.queue, messages.active) == ("audit", True)
            message = next(messages)
            assert (message.body, message.exchange, message.key, message.redelivered) == (
                b"one", "logs", "app.error", False,
            )  # fmt: skip
            assert message.properties.headers == {"user": "ada"}
            message.nack()
            again = next(messages)
            assert (again.body, again.redelivered) == (b"one", True)
            again.ack()
            next(messages).ack()
        assert not messages.active
        assert list(messages) == []
        assert bus.queues.inspect("audit").ready == 0
        foreign.delete("audit")
        with pytest.raises(NoRoute):
            foreign.consume("audit")
        with pytest.raises(NoRoute):
            foreign.publish(b"three", key="audit")


@pytest.mark.broker
def test_threads_share_a_consumer(rabbitmq: Broker) -> None:
    """Several threads iterate one consumer, each message reaches one of them, and the end of the bus ends all."""
    got: list[bytes] = []
    all_there = threading.Event()
    ended: list[BaseException | None] = []
    with blocking.connect(rabbitmq.url) as bus:
        bus.foreign.declare(AUDIT)
        consumer = bus.foreign.consume("audit", credit=10)

        def receive() -> None:
            try:
                for message in consumer:
                    got.append(message.body)
                    message.ack()
                    if len(got) == 100:
                        all_there.set()
                ended.append(None)
            except Closed as error:
                ended.append(error)

        threads = [threading.Thread(target=receive) for _ in range(4)]
        for thread in threads:
            thread.start()
        futures = [bus.foreign.publish.future(b"%d" % number, key="audit") for number in range(100)]
        for future in futures:
            future.result(20)
        assert all_there.wait(20)
    for thread in threads:
        thread.join(20)
    assert len(ended) == 4
    assert sorted(got, key=int) == [b"%d" % number for number in range(100)]


def test_engines_without_them() -> None:
    """An engine that is not RabbitMQ has none, and says so."""
    with blocking.connect("memory://") as bus, pytest.raises(Unsupported):
        _ = bus.foreign
