"""Worker processes that are killed while they work: each task is done, and none is lost.

Every seventh task kills its process at the first attempt. Only this task's attempt fails: the worker starts another process,
and the task is begun again.

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
    """Compute; the process sometimes dies here, as if it ran out of memory."""
    if task.data % 7 == 0 and task.attempt == 1:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return task.data**2, task.attempt


async def main() -> None:
    """Submit tasks, and count their outcomes."""
    async with redpoll.connect("memory://") as bus:
        async with bus.tasks.worker(work, queue="squares", pool="process", concurrency=2):
            done = [result async for result in bus.tasks.map(range(TASKS), queue="squares")]
    assert [square for square, _ in done] == [number**2 for number in range(TASKS)]
    print(len(done), "tasks done")
    print(sum(attempt == 2 for _, attempt in done), "of them at the second attempt")


if __name__ == "__main__":
    redpoll.run(main())
