"""Confirmed publishes to a queue of RabbitMQ, by aio-pika; the server end runs RabbitMQ, where the row has none."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path

import aio_pika

from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.rabbitmq import RabbitMQ

BODY = b"x" * 1_024
QUEUE = "only"


async def serve(control: Control, options: Fields) -> None:
    """Run the server, where the row has none, until the input ends."""
    with ExitStack() as stack:
        url = options.get("broker")
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options["folder"]))
            url = stack.enter_context(RabbitMQ(Path(folder))).url
        control.write(address=url)
        async for _ in control.jobs_async():
            control.write(begun=True)
            control.write(finished=0.0)


async def publish(control: Control, options: Fields) -> None:
    """Publish, so many at a time, each when the one before it is confirmed."""
    name = f"{QUEUE}.{options['queue']}"
    async with await aio_pika.connect(options["address"]) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": options["queue"]})
        exchange = channel.default_exchange
        control.write(address=None)
        async for job in control.jobs_async():
            share = max(1, job["count"] // job["open"])
            callers = min(job["open"], job["count"])

            async def call(count: int) -> None:
                for _ in range(count):
                    message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                    await exchange.publish(message, name, mandatory=True, timeout=60)

            started = now()
            await asyncio.gather(*(call(share) for _ in range(callers)))
            control.write(started=started, finished=now(), count=share * callers)
            await queue.purge()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else publish)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
