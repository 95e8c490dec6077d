"""Threads without asyncio: one thread sends numbers, four check them in parallel, and one collects the results.

The workers are a pool behind one node. A worker sends each result to the collector as a message, and its number is
acknowledged only when that has arrived: nothing is lost between the two.

Prints:

    17 numbers below 60 are prime, and 2 + 3 + ... + 59 = 440
"""

import threading

from redpoll import Address, Message
from redpoll.blocking import PoolNode, QueueNode, Received

LAST = 60


def is_prime(number: int) -> bool:
    """Return True if a number has no divisor but itself and one."""
    return number > 1 and all(number % divisor for divisor in range(2, number))


class Worker:
    """Sends each prime among its numbers to the collector."""

    def __init__(self, collector: Address) -> None:
        self._collector = collector

    def work(self, message: Received[bytes]) -> None:
        """Check one number, in a thread of the pool."""
        if is_prime(int(message.data)):
            message.node.send(message.forward(self._collector)).result()


def collect(node: QueueNode[bytes], found: list[int]) -> None:
    """Collect messages until the node stops."""
    found.extend(int(message.data) for message in node)


def main() -> None:
    """Start the three parts; each could be a separate process."""
    found: list[int] = []
    with QueueNode(port=0) as collector:
        collecting = threading.Thread(target=collect, args=(collector, found))
        collecting.start()
        worker = Worker(collector.address)
        with PoolNode(worker.work, port=0, max_workers=4) as pool, QueueNode() as sender:
            sender.send_many(Message(b"%d" % number, pool.address) for number in range(LAST))
    collecting.join()
    found.sort()
    print(f"{len(found)} numbers below {LAST} are prime, and 2 + 3 + ... + {found[-1]} = {sum(found)}")


if __name__ == "__main__":
    main()
