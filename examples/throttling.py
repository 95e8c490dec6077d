"""Work throttled by slots: three clients send all their jobs at once, and the worker runs a limited number at a time.

A slot is the permission to have one message in progress. `slots` limits the messages of one client, `node_slots` those
of all. A message without a slot waits in order, and so does its sender.

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
    """Counts the jobs in progress.

    Attributes:
        done: Finished jobs.
        most: Maximum number of jobs at a time.
        most_of_one: The same of one client.
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
    """Send jobs; `send_many` keeps at most a window of them open."""
    async with Node() as client:
        await client.send_many(Message(b"job %d" % number, address) for number in range(JOBS))


async def main() -> None:
    """Start a worker and its clients; each client would be a separate process."""
    worker = Worker()
    async with Node(worker.work, port=0, slots=4, node_slots=6) as node, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(give_work(node.address))
    print(worker.done, "jobs done")
    print("at most", worker.most_of_one, "of one client at a time,", worker.most, "of all")


if __name__ == "__main__":
    redpoll.run(main())
