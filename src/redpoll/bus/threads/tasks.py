"""Tasks, for threads."""

from __future__ import annotations

from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, call, maker, verb, wait
from redpoll.bus.tasks import Chain, Claim, Group, Handle, TaskChain, TaskGroup, Tasks, Worker
from redpoll.bus.tasks.chains import MapOptions
from redpoll.bus.tasks.tasks import MAP_LIMIT, QUEUE, check_map
from redpoll.bus.threads.resident import BusResident, Running
from redpoll.errors import RedpollError

__all__ = ["BlockingChain", "BlockingClaim", "BlockingGroup", "BlockingHandle", "BlockingTasks", "BlockingWorker"]


class BlockingHandle(Face[Handle]):
    """A task that was submitted: see `redpoll.bus.Handle`."""

    _home: BusResident

    def __repr__(self) -> str:
        return repr(self._target)

    id = Attribute[str]()
    """The task's id."""

    duplicate = Attribute[bool]()
    """True if a task with the same `dedup` key was submitted before; this is a handle of that one."""

    over = Attribute[bool]()
    """True once its outcome, or its absence, reached this handle: see `redpoll.bus.Handle.over`."""

    progress = Attribute[Any]()
    """The latest progress that reached this handle; None before."""

    result = verb(
        Handle.result,
        lambda home, result: _handle(home, result) if isinstance(result, Handle) else result,
        # One for an id that has not asked would wait for those that are asking.
        known=lambda handle: handle._watching and handle.over,
    )
    state = verb(Handle.state)
    cancel = verb(Handle.cancel)

    def watch(self) -> Iteration[Any]:
        """Iterate over progress, from the latest that is known on, until the task ends. See `redpoll.bus.Handle.watch`."""
        return self._home.iterate(self._target.watch())

    def on_progress(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call a plain function with each progress from now on, in a thread of the bus; its exceptions are logged.

        Returns:
            A function that ends this.
        """
        post = self._home.soon(callback, f"a callback for the progress of task {self.id}")
        end = call(self._home, self._target.on_progress, post)
        return partial(call, self._home, end)


def _handle(home: Any, handle: Handle) -> BlockingHandle:
    return BlockingHandle(home, handle)


class BlockingClaim(Face[Claim]):
    """A task that was taken: see `redpoll.bus.Claim`.

    As a context manager it ends with the block, as that does. One that is dropped goes back.
    """

    _home: BusResident
    _goes_back = True

    def __repr__(self) -> str:
        return repr(self._target)

    data = Attribute[Any]()
    """The submitted data."""

    results = Attribute[list[Any]]()
    """The results of the tasks that it came after: see `redpoll.bus.Task.results`."""

    id = Attribute[str]()
    """Its id."""

    queue = Attribute[str]()
    """Name of the queue that it came from."""

    headers = Attribute[Mapping[str, Any]]()
    """The headers of its submitter."""

    attempt = Attribute[int]()
    """1, and one more for each worker that was lost with it."""

    tries = Attribute[int]()
    """1, and one more for each try that failed and that a `Retry` follows."""

    left = Attribute[float | None]()
    """Seconds until its deadline; None if it has none."""

    cancelled = Attribute[bool]()
    """True if the work is not wanted any more: cancelled, or past its deadline."""

    lost = Attribute[bool]()
    """True if it is not this worker's any more: its result is refused, and another worker may begin it."""

    done = Attribute[bool]()
    """True if it has its outcome, or was given back."""

    progress = maker(Claim.progress, lambda _, told: told, on_loop=True)
    set_result = maker(Claim.set_result, lambda _, nothing: nothing, on_loop=True)
    set_exception = maker(Claim.set_exception, lambda _, nothing: nothing, on_loop=True)
    requeue = maker(Claim.requeue, lambda _, nothing: nothing, on_loop=True)
    reject = maker(Claim.reject, lambda _, nothing: nothing, on_loop=True)
    dead_letter = maker(Claim.dead_letter, lambda _, nothing: nothing, on_loop=True)
    confirmed = verb(Claim.confirmed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End it, and wait until that is recorded. Ctrl-C in the block, or here before it ended, gives it back."""
        target = self._target
        handover = self._home.handover
        try:
            return wait(self._home, target.__aexit__, kind, error, trace)
        except BaseException:
            # Nothing comes in between before this one call.
            start_new_thread(handover.post, (target.requeue,))
            raise

    def __del__(self) -> None:
        home: BusResident | None = getattr(self, "_home", None)
        if home is not None and self._goes_back:
            home.give_back(self._target.requeue)


def _claim(home: Any, claim: Claim) -> BlockingClaim:
    """On the loop: what a thread has of a task that it took."""
    taken = BlockingClaim(home, claim)
    home.look_after(taken, claim.requeue)
    return taken


def _one_of_each(home: BusResident, claim: Claim) -> BlockingClaim:
    """As `_claim`, for `Tasks.each`, which gives back skipped tasks when it ends: else it would take them once more."""
    taken = BlockingClaim(home, claim)
    taken._goes_back = False
    # Its own finalizer runs on the loop, where nothing interrupts it.
    home.look_after(taken, partial(bool, claim))
    return taken


class BlockingWorker(Running[Worker]):
    """Tasks of one queue, done by one handler: see `redpoll.bus.Worker`."""

    queue = Attribute[str]()
    """Name of the queue."""

    concurrency = Attribute[int]()
    """Its slots."""

    running = Attribute[int]()
    """The number of running handlers."""

    def _let_go(self) -> None:
        self._target.let_go()


def _chain(home: Any, chain: TaskChain) -> BlockingChain:
    return BlockingChain(home, chain)


class BlockingChain(Face[TaskChain]):
    """A task that is not submitted yet, with those that it comes after: see `redpoll.bus.TaskChain`."""

    submit = verb(Chain.submit, _handle)
    run = verb(Chain.run)
    then = maker(TaskChain.then, _chain)


class BlockingGroup(Face[TaskGroup]):
    """Chains whose results are wanted together: see `redpoll.bus.TaskGroup`."""

    submit = verb(Group.submit, lambda home, handles: [_handle(home, each) for each in handles])
    run = verb(Group.run)
    then = maker(TaskGroup.then, BlockingChain)


class BlockingTasks(Face[Tasks]):
    """Work that is done once, by one of many workers: see `redpoll.bus.Tasks`."""

    _home: BusResident

    submit = verb(Tasks.submit, _handle)
    schedule = verb(Tasks.schedule)
    unschedule = verb(Tasks.unschedule)
    run = verb(Tasks.run)
    next = verb(Tasks.next, _claim, undo=lambda claim: claim._target.requeue())
    handle = maker(Tasks.handle, _handle)
    worker = maker(Tasks.worker, BlockingWorker)
    chain = maker(Tasks.chain, BlockingChain)

    def group(self, chains: Iterable[BlockingChain], *, collect: bool = False) -> BlockingGroup:
        """Return chains as a group, whose results are wanted together. See `redpoll.bus.Tasks.group`."""
        return BlockingGroup(self._home, self._target.group([each._target for each in chains], collect=collect))

    def submit_many(self, items: Iterable[Any], queue: str = QUEUE, **options: Any) -> list[BlockingHandle]:
        """Submit many tasks, in order, at less cost than one by one. See `redpoll.bus.Tasks.submit_many`."""
        if options.get("dedup") is not None:
            options["dedup"] = list(options["dedup"])
        # Asked for here: an iterable may wait.
        given = list(items)
        handles = wait(self._home, partial(self._target.submit_many, given, queue, **options))
        return [BlockingHandle(self._home, each) for each in handles]

    def map(
        self, items: Iterable[Any], queue: str = QUEUE, *, limit: int = MAP_LIMIT, **options: Unpack[MapOptions]
    ) -> Generator[Any, None, None]:
        """Iterate over the results of tasks, in the order of their items. See `redpoll.bus.Tasks.map`.

        The items are asked for in the thread that iterates. Leaving it cancels what was submitted and not yielded.
        """
        check_map(limit, options)
        return self._map(iter(items), queue, limit, options)

    def _map(self, source: Iterator[Any], queue: str, limit: int, options: MapOptions) -> Generator[Any, None, None]:
        waiting: deque[BlockingHandle] = deque()
        try:
            while True:
                for item in source:
                    waiting.append(self.submit(item, queue, **options))
                    if len(waiting) >= limit:
                        break
                if not waiting:
                    return
                yield waiting[0].result()
                waiting.popleft()
        finally:
            for handle in waiting:
                if not handle.duplicate:
                    with suppress(RedpollError):
                        handle.cancel.future()

    def each(self, queue: str = QUEUE) -> Iteration[BlockingClaim]:
        """Iterate over the tasks that are in a queue now, until it is empty. See `redpoll.bus.Tasks.each`."""
        return self._home.iterate(self._target.each(queue), partial(_one_of_each, self._home))
