"""The two ends of the promise's test, each a process of its own: they write down what they know, and judge nothing.

``python -m tests.promise.programs sender|receiver OPTIONS`` with options as JSON. A log is a file of lines, each written
by one call to the system, so that it survives the process whatever ends that.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any, Self

import redpoll
from redpoll import Message, Node, NotConfirmed, NotSent, Received, RedpollError, Refused
from tests.node.support import elapse

#: Bytes of a message that say its number; what follows is padding.
NUMBER_SIZE = 8

#: Each so-manieth message is refused by the receiver.
REFUSED_EVERY = 97


class Log:
    """A file of short lines, for whoever comes after this process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        """Add a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


@dataclass(frozen=True)
class Options:
    """What both programs are told.

    Attributes:
        log: Where to write.
        addresses: Where the sender sends to, in turn.
        port: Where the receiver listens.
        count: Messages.
        seed: From which sizes, pauses and cancellations are drawn.
        retry: Of each send.
        timeout: Of each send, seconds.
        open: How many sends are open at a time.
        pause: Seconds between two sends of one of these, at most: the faults need time to happen.
        hurry: Whether a send may have less than `timeout`, down to nothing, and may be cancelled.
        resume: How long the sessions of both nodes last; then sends have no time of their own, and none is in fragments.
    """

    log: str
    addresses: tuple[str, ...] = ()
    port: int = 0
    count: int = 0
    seed: int = 0
    retry: int = 0
    timeout: float = 3.0
    open: int = 64
    pause: float = 0.2
    hurry: bool = True
    resume: float | None = None

    def encode(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """From the command line."""
        return cls(**json.loads(text))


#: Links that died in silence are found in three times this, seconds.
KEEPALIVE = 0.5


async def receive(options: Options) -> None:
    """Handle messages: note each beginning and each end, refuse some, take a little time over some."""
    log = Log(options.log)
    chance = random.Random(f"{options.seed} receiver")
    pid = os.getpid()

    async def handler(message: Received[Any]) -> None:
        number = int.from_bytes(message.data[:NUMBER_SIZE], "big")
        log.write(pid, number, "begun")
        if chance.random() < 0.1:
            await elapse(chance.random() * 0.01)
        if number % REFUSED_EVERY == 0:
            message.refuse("on purpose")
            log.write(pid, number, "refused")
            return
        log.write(pid, number, "ended")

    async with Node(handler, port=options.port, slots=8, keepalive=KEEPALIVE, resume=options.resume) as node:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop, node)
        print("ready", flush=True)
        await node.serve_forever()
        print(json.dumps({"slots_used": node.stats().slots_used}), flush=True)


_stopping: set[asyncio.Task[None]] = set()


def _stop(node: Node[Any]) -> None:
    _stopping.add(asyncio.ensure_future(node.stop()))


async def send(options: Options) -> None:
    """Send the messages and note how each send ended; then, when told to, a last few that must all succeed."""
    log = Log(options.log)
    chance = random.Random(f"{options.seed} sender")
    async with Node(listen=False, keepalive=KEEPALIVE, resume=options.resume) as node:
        numbers = iter(range(1, options.count + 1))
        await asyncio.gather(*[_send_each(node, numbers, options, log, chance) for _ in range(options.open)])
        print("sent", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # More than a window: a place that was lost would hold the last of these up.
        last = [n for n in itertools.islice(itertools.count(options.count + 1), 200) if n % REFUSED_EVERY]
        await asyncio.gather(*[node.send(_message(n, 0, options), timeout=10) for n in last])
        for number in last:
            log.write(0, number, "ok")
        stats = node.stats()
        print(json.dumps({"in_flight": stats.in_flight, "queued": stats.queued}), flush=True)


def _message(number: int, size: int, options: Options) -> Message[bytes]:
    address = options.addresses[number % len(options.addresses)]
    return Message(number.to_bytes(NUMBER_SIZE, "big") + bytes(size), address)


async def _send_each(node: Node[Any], numbers: Any, options: Options, log: Log, chance: random.Random) -> None:
    for number in numbers:
        size = chance.choices([0, 200, 20_000, 200_000, 3_000_000], [50, 30, 17, 2, 0.2])[0]
        timeout = None
        if options.resume is None:
            timeout = options.timeout * (chance.random() if options.hurry else 1.0)
        else:
            size = min(size, 200_000)
        sending = node.send(
            _message(number, size, options),
            retry=options.retry,
            timeout=timeout,
        )
        if options.hurry and chance.random() < 0.02:
            asyncio.get_running_loop().call_later(chance.random() * 0.05, sending.cancel)
        try:
            await sending
        except asyncio.CancelledError:
            outcome = "cancelled"
        except Refused as error:
            outcome = "refused" if error.sent else "unsent"
        except NotSent:
            outcome = "unsent"
        except NotConfirmed:
            outcome = "unsure"
        except RedpollError as error:
            outcome = type(error).__name__
        else:
            outcome = "ok"
        log.write(0, number, outcome)
        await asyncio.sleep(chance.random() * options.pause)


def main() -> None:
    """Run the program that the command line names."""
    options = Options.decode(sys.argv[2])
    redpoll.run({"receiver": receive, "sender": send}[sys.argv[1]](options))


if __name__ == "__main__":
    main()
