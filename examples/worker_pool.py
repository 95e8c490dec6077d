"""A pool of worker processes, one of which is killed while it works: the others take over its jobs.

Each worker has at most `SLOTS` jobs in progress; further ones wait. A job whose worker dies fails at its sender as
`NotConfirmed`: it may have been done. These jobs may be repeated, so it is sent to another worker.

Prints:

    100 jobs done
    by 3 workers, one of them killed
"""

import asyncio
import os
import sys
from collections import Counter, deque

import redpoll
from redpoll import Message, NoAnswer, Node, Received, SendError

WORKERS = 3
SLOTS = 2
JOBS = 100


async def work(message: Received[bytes]) -> bytes:
    """Do one job, and return the worker's process id."""
    await asyncio.sleep(len(message.data) / 1000)
    return b"%d" % os.getpid()


async def run_worker() -> None:
    """Work until the end of the process; report the address."""
    async with Node(work, port=0, slots=SLOTS) as node:
        print(node.address, flush=True)
        await node.serve_forever()


async def give_work(node: Node[bytes], address: str, jobs: deque[int], done: Counter[int]) -> None:
    """Send jobs to a worker, one at a time, until there are no more, or it is gone."""
    while jobs:
        job = jobs.popleft()
        try:
            answer = await node.request(Message(b"job %d" % job, address))
        except (SendError, NoAnswer):
            jobs.append(job)
            return
        done[int(answer.data)] += 1


async def start_worker() -> tuple[asyncio.subprocess.Process, str]:
    """Start a worker; return its process and its address."""
    command = (sys.executable, __file__, "work")
    worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    return worker, (await worker.stdout.readline()).decode().strip()


async def main() -> None:
    """Start workers, give them work, and kill one after its first job."""
    workers = await asyncio.gather(*(start_worker() for _ in range(WORKERS)))
    victim, its_address = workers[0]
    jobs, done = deque(range(JOBS)), Counter[int]()
    async with Node(listen=False) as node, asyncio.TaskGroup() as group:
        first = deque([jobs.popleft()])
        await give_work(node, its_address, first, done)
        for _, address in workers:
            for _ in range(SLOTS):
                group.create_task(give_work(node, address, jobs, done))
        await asyncio.sleep(0.05)
        victim.kill()
    for worker, _ in workers[1:]:
        worker.terminate()
    await asyncio.gather(*(worker.wait() for worker, _ in workers))
    print(done.total(), "jobs done")
    print("by", len(done), "workers, one of them killed")


if __name__ == "__main__":
    redpoll.run(run_worker() if sys.argv[1:] == ["work"] else main())
