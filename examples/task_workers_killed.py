"""Workers in processes that are killed in the middle of their work: each task is done, and none is lost.

Every seventh task kills the process that works on it, the first time. That is a failed attempt of this task alone; the worker
starts another process, and the task is begun again.

Prints:

    21 tasks done
    3 of them at the second attempt
"""

import os
import signal

import redpoll
from redpoll.bus import Task

TASKS = 21


def work(task: Task) -> tuple[int, int]:
    """Compute; here the process dies sometimes, as when it runs out of memory."""
    if task.data % 7 == 0 and task.attempt == 1:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return task.data**2, task.attempt


async def main() -> None:
    """Submit tasks, and count what became of them."""
    async with redpoll.connect("memory://") as bus:
        async with bus.tasks.worker(work, queue="squares", pool="process", concurrency=2):
            done = [result async for result in bus.tasks.map(range(TASKS), queue="squares")]
    assert [square for square, _ in done] == [number**2 for number in range(TASKS)]
    print(len(done), "tasks done")
    print(sum(attempt == 2 for _, attempt in done), "of them at the second attempt")


if __name__ == "__main__":
    redpoll.run(main())
