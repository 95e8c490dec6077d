"""Rounds of 100 persistent messages by pika, confirmed one by one or not at all."""

from __future__ import annotations

from typing import Any

import pika

from benchmarks.control import Control, arguments
from benchmarks.ends.hub_rounds import QUEUE, ROUND, play

ITS_QUEUE = f"{QUEUE}.pika"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class OnPika:
    """Messages of one durable queue on a blocking connection."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def send(self, bodies: list[bytes]) -> None:
        """Publish each; each call waits for its confirmation where the channel has them."""
        for body in bodies:
            self._channel.basic_publish("", ITS_QUEUE, body, PERSISTENT, mandatory=True)

    def get(self, count: int) -> None:
        """Consume and acknowledge so many."""
        left = count
        for method, _, _ in self._channel.consume(ITS_QUEUE):
            self._channel.basic_ack(method.delivery_tag)
            left -= 1
            if not left:
                break
        self._channel.cancel()


def main() -> None:
    """Run the client end; the server end is `hub_kiwipy`'s."""
    _, options = arguments()
    control = Control()
    connection = pika.BlockingConnection(pika.URLParameters(options["address"]))
    channel = connection.channel()
    channel.queue_declare(ITS_QUEUE, durable=True)
    channel.basic_qos(prefetch_count=options.get("prefetch", ROUND))
    if options["confirmed"]:
        channel.confirm_delivery()
    control.write(address=None)
    play(control, OnPika(channel))
    connection.close()


if __name__ == "__main__":
    main()
