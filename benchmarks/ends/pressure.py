"""A sender that does not wait and a receiver that takes its time; both watch their memory."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.control import Control, Countdown, Fields, arguments, now, run_async
from benchmarks.memory import resident_bytes
from redpoll import Address, Message, Node, QueueFull

#: Seconds that the handler takes, and messages that are measured; those behind them are given up.
WORK = 0.001
HANDLED = 500


async def serve(control: Control, options: Fields) -> None:
    """Handle slowly, and answer each job with the most memory that was held."""
    countdown = Countdown()
    most = [0]

    async def handler(message: Message[Any]) -> None:
        await asyncio.sleep(WORK)
        if countdown.left % 50 == 0:
            most[0] = max(most[0], resident_bytes())
        if countdown.left:
            countdown.take()

    async with Node(handler, port=0) as node:
        control.write(address=str(node.address))
        async for job in control.jobs_async():
            countdown.begin(min(HANDLED, job["count"]))
            before = most[0] = resident_bytes()
            control.write(begun=True)
            finished = await countdown.wait_done()
            control.write(finished=finished, grown=most[0] - before)
        await node.stop(0)


async def send(control: Control, options: Fields) -> None:
    """Send without waiting; what was not taken when the receiver has handled enough is given up."""
    address = Address.parse(options["address"])
    async with Node(timeout=60.0) as node:
        control.write(address=None)
        async for job in control.jobs_async():
            await node.ready(address)
            before = resident_bytes()
            started = now()
            sendings = []
            for number in range(job["count"]):
                sending = node.send(Message(number.to_bytes(8, "big") + bytes(job["size"] - 8), address))
                if not sending.done():
                    sendings.append(sending)
                elif not isinstance(sending.exception(), QueueFull):
                    await sending
            grown = resident_bytes() - before
            for index, sending in enumerate(sendings):
                if index < min(HANDLED, job["count"]):
                    await sending
                else:
                    sending.cancel()
            control.write(started=started, finished=now(), grown=grown)
            await asyncio.gather(*sendings, return_exceptions=True)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else send)(Control(), options), options["loop"])


if __name__ == "__main__":
    main()
