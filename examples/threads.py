"""Plain threads, no asyncio: one thread sends numbers, four work on them side by side, and one collects what they found.

The workers are a pool behind one node. What a worker found goes to the collector as a message of its own, and a number
is acknowledged only when that has arrived: nothing is lost between the two.

Prints:

    17 numbers below 60 are prime, and 2 + 3 + ... + 59 = 440
"""

import threading

from redpoll import Address, Message
from redpoll.blocking import PoolNode, QueueNode, Received

LAST = 60


def is_prime(number: int) -> bool:
    """Whether a number has no divisor but itself and one."""
    return number > 1 and all(number % divisor for divisor in range(2, number))


class Worker:
    """Tells the collector of each prime among the numbers that it gets."""

    def __init__(self, collector: Address) -> None:
        self._collector = collector

    def work(self, message: Received[bytes]) -> None:
        """Look at one number, in a thread of the pool."""
        if is_prime(int(message.data)):
            message.node.send(message.forward(self._collector)).result()


def collect(node: QueueNode[bytes], found: list[int]) -> None:
    """Keep what arrives until the node stops."""
    found.extend(int(message.data) for message in node)


def main() -> None:
    """Start the three parts; each could be a process of its own."""
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
