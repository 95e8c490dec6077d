"""A queue between processes: a server distributes numbers, and four processes report which are prime.

A worker registers, and then gets a number for each answer that it puts. Nothing here waits for a future: leaving the
`with` block does, so each answer has arrived before its worker ends.

Prints:

    17 numbers below 60 are prime, found by 4 processes
"""

import multiprocessing

from redpoll import nq

LAST = 60
WORKERS = 4


def work(port: int) -> None:
    """Check numbers until there are no more."""
    with nq.new(options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port))) as queue:
        queue.put(None)
        while True:
            number = queue.get().data
            if number is None:
                break
            queue.put((number, number > 1 and all(number % divisor for divisor in range(2, number))))


def main() -> None:
    """Serve at any free port, and start the workers."""
    numbers = iter(range(LAST))
    primes = []
    workers = set()
    with nq.new(purpose="server", options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))) as queue:
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=work, args=(queue.netloc.port,)) for _ in range(WORKERS)]
        for process in processes:
            process.start()
        answers = 0
        while answers < LAST:
            message = queue.get(timeout=25)
            workers.add(message.peer)
            if message.data is not None:
                answers += 1
                number, is_prime = message.data
                if is_prime:
                    primes.append(number)
            number = next(numbers, None)
            if number is not None:
                queue.put(number, message.peer)
        queue.put(None)
        # A late worker receives no number.
        while len(workers) < WORKERS:
            late = queue.get(timeout=25).peer
            workers.add(late)
            queue.put(None, late)
    for process in processes:
        process.join()
    print(f"{len(primes)} numbers below {LAST} are prime, found by {len(workers)} processes")


if __name__ == "__main__":
    main()
