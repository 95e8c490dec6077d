"""Work that is throttled by slots: three clients send all they have, and the worker never takes on more than it can.

A slot is the right to have one message in progress. `slots` limits the messages of one client, `node_slots` those of
all. Who has no slot waits in order, and its sender with it.

Prints:

    60 jobs done
    at most 4 of one client at a time, 6 of all
"""

import asyncio
from collections import Counter

import redpoll
from redpoll import Address, Message, Node, Received

CLIENTS = 3
JOBS = 20


class Worker:
    """Counts what it works on at a time.

    Attributes:
        done: Jobs that it has finished.
        most: The most it worked on at once.
        most_of_one: The most of one client.
    """

    def __init__(self) -> None:
        self.done = 0
        self.most = 0
        self.most_of_one = 0
        self._running: Counter[bytes | None] = Counter()

    async def work(self, message: Received[bytes]) -> None:
        """Do one job."""
        client = message.remote_identity
        self._running[client] += 1
        self.most = max(self.most, self._running.total())
        self.most_of_one = max(self.most_of_one, self._running[client])
        await asyncio.sleep(0.01)  # the job
        self._running[client] -= 1
        self.done += 1


async def give_work(address: Address) -> None:
    """Send jobs; `send_many` keeps a window of them open, no more."""
    async with Node() as client:
        await client.send_many(Message(b"job %d" % number, address) for number in range(JOBS))


async def main() -> None:
    """Start a worker and its clients; each client would be a process of its own."""
    worker = Worker()
    async with Node(worker.work, port=0, slots=4, node_slots=6) as node, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(give_work(node.address))
    print(worker.done, "jobs done")
    print("at most", worker.most_of_one, "of one client at a time,", worker.most, "of all")


if __name__ == "__main__":
    redpoll.run(main())
