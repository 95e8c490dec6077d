"""Confirmed publishes of persistent messages to any queue of RabbitMQ, by redpoll."""

from __future__ import annotations

import asyncio

import redpoll
from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.hub_rabbitmq import BODY, serve
from redpoll.bus.engines.amqp.foreign import Properties, Queue

PERSISTENT = Properties(delivery_mode=2)


async def publish(control: Control, options: Fields) -> None:
    """Publish, so many at a time, each when the one before it is confirmed; each job has a queue of its own."""
    async with redpoll.connect(options["address"]) as bus:
        control.write(address=None)
        number = 0
        async for job in control.jobs_async():
            number += 1
            # What is not consumed goes with its queue.
            kind = {"x-queue-type": options["queue"], "x-expires": 300_000}
            name = f"publishes.{options['loop']}.{options['queue']}.{number}"
            await bus.foreign.declare(Queue(name, durable=True, arguments=kind))
            share = max(1, job["count"] // job["open"])
            callers = min(job["open"], job["count"])

            async def call(count: int, name: str) -> None:
                for _ in range(count):
                    await bus.foreign.publish(BODY, key=name, properties=PERSISTENT, timeout=60)

            started = now()
            await asyncio.gather(*(call(share, name) for _ in range(callers)))
            control.write(started=started, finished=now(), count=share * callers)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else publish)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
