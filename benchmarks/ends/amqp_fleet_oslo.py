"""The processes of oslo.messaging that call and cast on one RabbitMQ, or by its driver for redpoll on a hub."""

from __future__ import annotations

import threading

import oslo_messaging
from oslo_config import cfg

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.amqp_fleet import TEXT, Endpoint


class Echo(Endpoint):
    """What is called."""

    def echo(self, context: object, text: str) -> str:
        """Return the text."""
        with _lock:
            self.count()
        return text


_lock = threading.Lock()


def answer(control: Control, options: Fields) -> None:
    """Be a callee."""
    endpoint = Echo()
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url=options["broker"].replace("amqp:", "rabbit:"))
    server = oslo_messaging.get_rpc_server(transport, oslo_messaging.Target(topic="fleet", server="one"), [endpoint])
    server.start()
    control.write(address=options["broker"])
    for _ in control.jobs():
        control.write(served=endpoint.served, last=endpoint.last)
    server.stop()
    server.wait()


def ask(control: Control, options: Fields) -> None:
    """Be a caller, with a thread for each that is open."""
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url=options["broker"].replace("amqp:", "rabbit:"))
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="fleet"), timeout=60)
    client.call({}, "echo", text=TEXT)
    control.write(address=options["broker"])
    for job in control.jobs():
        times: list[float] = []
        failures: list[Exception] = []

        def several(work: str, count: int, times: list[float], failures: list[Exception]) -> None:
            for _ in range(count):
                began = now()
                try:
                    if work == "call":
                        client.call({}, "echo", text=TEXT)
                    else:
                        client.cast({}, "echo", text=TEXT)
                except Exception as error:  # noqa: BLE001  # all of them are counted
                    failures.append(error)
                times.append(now() - began)

        callers = min(job["open"], job["count"])
        shares = [job["count"] // callers + (number < job["count"] % callers) for number in range(callers)]
        threads = [threading.Thread(target=several, args=(job["work"], each, times, failures)) for each in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        control.write(failed=len(failures), times=times)


def main() -> None:
    """Run one of the processes."""
    _, options = arguments()
    cfg.CONF([])
    (answer if options["callee"] else ask)(Control(), options)


if __name__ == "__main__":
    main()
