"""Process passes: a function called in another process and its result, by redpoll's nodes and by concurrent.futures."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from benchmarks.control import Control, Fields, arguments, now, run_async
from redpoll import Address, Message, Node
from redpoll.blocking import QueueNode


def increment(number: int) -> int:
    """The work, which is as good as none."""
    return number + 1


#: What a node calls: ProcessPoolExecutor finds a function by its name as well.
FUNCTIONS: dict[str, Callable[[int], int]] = {"increment": increment}


async def work(control: Control, options: Fields) -> None:
    """Call what each request names, and answer with the result; the client end knows when a job is done."""

    def handler(message: Any) -> Any:
        name, argument = message.data
        return FUNCTIONS[name](argument)

    async with Node(handler, port=0, **options["config"]) as node:
        control.write(address=str(node.address))
        async for _ in control.jobs_async():
            control.write(begun=True)
            control.write(finished=0.0)


def stand_by(control: Control, options: Fields) -> None:
    """Do nothing: the client end starts its worker process itself."""
    control.write(address=None)
    for _ in control.jobs():
        control.write(begun=True)
        control.write(finished=0.0)


async def call_asyncio(control: Control, options: Fields) -> None:
    """Keep each job's number of calls open from a loop; the oldest is awaited before the next is begun."""
    address = Address.parse(options["address"])
    async with Node(listen=False, **options["config"]) as node:
        control.write(address=None)
        async for job in control.jobs_async():
            flying: deque[Awaitable[Any]] = deque()
            request = node.request
            room = job["open"]
            right = True
            started = now()
            for number in range(job["count"]):
                if room:
                    room -= 1
                else:
                    right &= (await flying.popleft()).data > 0
                flying.append(request(Message(("increment", number), address)))
            for future in flying:
                right &= (await future).data > 0
            control.write(started=started, finished=now(), right=right)


def call_threads(control: Control, options: Fields) -> None:
    """Keep each job's number of calls open from a thread, by a node."""
    address = Address.parse(options["address"])
    with QueueNode(listen=False, **options["config"]) as node:
        control.write(address=None)

        def call(number: int) -> Future[Any]:
            return node.request(Message(("increment", number), address))

        for job in control.jobs():
            control.write(**_keep_open(call, job, lambda answer: answer.data > 0))


def call_pool(control: Control, options: Fields) -> None:
    """Keep each job's number of calls open from a thread, by a pool of one process."""
    with ProcessPoolExecutor(1) as pool:
        control.write(address=None)

        def call(number: int) -> Future[int]:
            return pool.submit(increment, number)

        for job in control.jobs():
            control.write(**_keep_open(call, job, lambda result: result > 0))


def _keep_open(call: Callable[[int], Future[Any]], job: Fields, is_right: Callable[[Any], bool]) -> Fields:
    flying: deque[Future[Any]] = deque()
    room = job["open"]
    right = True
    started = now()
    for number in range(job["count"]):
        if room:
            room -= 1
        else:
            right &= is_right(flying.popleft().result())
        flying.append(call(number))
    for future in flying:
        right &= is_right(future.result())
    return {"started": started, "finished": now(), "right": right}


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    api = options["api"]
    if api == "pool":
        (stand_by if role == "server" else call_pool)(control, options)
    elif role == "server":
        run_async(work(control, options), options["loop"])
    elif api == "thread":
        call_threads(control, options)
    else:
        run_async(call_asyncio(control, options), options["loop"])


if __name__ == "__main__":
    main()
