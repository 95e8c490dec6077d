"""Calls, casts and notifications by oslo.messaging through RabbitMQ; the server end runs RabbitMQ and what is called."""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import oslo_messaging
from oslo_config import cfg

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.hub_rounds import stand_by
from benchmarks.memory import processor_time
from benchmarks.rabbitmq import RabbitMQ

TEXT = "x" * 100
TOPIC = "echo"
NEWS = "news"
#: More threads than these were not faster.
THREADS = 5


class Endpoint:
    """The endpoint that is called, and notified."""

    def echo(self, context: object, text: str) -> str:
        """Return the text."""
        return text

    def info(self, *notification: object) -> None:
        """Take a notification."""


def serve(control: Control, options: Fields) -> None:
    """Run RabbitMQ, where the row has none, and an rpc server and a listener, until the input ends."""
    with ExitStack() as stack:
        if "broker" in options:
            url = options["broker"]
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options["folder"]))
            url = stack.enter_context(RabbitMQ(Path(folder))).url
        url = url.replace("amqp:", "rabbit:")
        endpoint = Endpoint()
        calls = oslo_messaging.get_rpc_transport(cfg.CONF, url=url)
        target = oslo_messaging.Target(topic=TOPIC, server="one")
        server = oslo_messaging.get_rpc_server(calls, target, [endpoint])
        server.start()
        news = oslo_messaging.get_notification_transport(cfg.CONF, url=url)
        listener = oslo_messaging.get_notification_listener(news, [oslo_messaging.Target(topic=NEWS)], [endpoint])
        listener.start()
        control.write(address=url)
        stand_by(control)
        for each in (server, listener):
            each.stop()
            each.wait()


def ask(control: Control, options: Fields) -> None:
    """Call from a thread, or from several, each when the one before it is answered, or confirmed."""
    calls = oslo_messaging.get_rpc_transport(cfg.CONF, url=options["address"])
    client = oslo_messaging.get_rpc_client(calls, oslo_messaging.Target(topic=TOPIC), timeout=60)
    news = oslo_messaging.get_notification_transport(cfg.CONF, url=options["address"])
    notifier = oslo_messaging.Notifier(news, "bench", driver="messagingv2", topics=[NEWS])
    client.call({}, "echo", text=TEXT)
    control.write(address=None)
    for job in control.jobs():
        callers = min(job["open"], THREADS)
        share = max(1, job["count"] // callers)

        def call(work: str, count: int) -> None:
            for _ in range(count):
                if work == "call":
                    client.call({}, "echo", text=TEXT)
                elif work == "cast":
                    client.cast({}, "echo", text=TEXT)
                else:
                    notifier.info({}, "event", TEXT)

        threads = [threading.Thread(target=call, args=(job["work"], share)) for _ in range(callers)]
        started, used = now(), processor_time(options.get("process", 0))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        finished, used = now(), processor_time(options.get("process", 0)) - used
        control.write(started=started, finished=finished, count=share * callers, used=used)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    cfg.CONF([])
    (serve if role == "server" else ask)(Control(), options)


if __name__ == "__main__":
    main()
