"""The door between patterns and engines: the duties of an engine, and its promises.

Patterns (tasks, rpc, broadcast, notifications) know this module and nothing below it; an engine knows no pattern.
`redpoll.testing.conformance` tests an engine against what stands here.

**One idea.** Everything that has one receiver is a *task in a queue*: `publish` puts it there, a `Consumer` is given it as
a `Delivery`, and it has exactly one `Outcome`, recorded by `Delivery.ack` or by the engine. A `Watcher` that was passed
along sees what the receiver says meanwhile (`progress`) and the outcome. A call of rpc is a task as well: its server calls
`Delivery.accept` before it begins, or consumes with ``accept=True``; from there on it is not given to anybody else (at most
once). It answers in parts by `progress`, and ends by `ack`. Everything that has many receivers is an *event on a subject*, to
live subscriptions, and to the queues whose topics match.

**Loop and threads.** An engine lives on the event loop on which it was started. All its methods, and those of what it hands
out, are called on this loop, and callbacks (sinks, watchers, listeners) come there, never inside of the call that caused
them, with two exceptions: a `Watcher`, and the sink of deliveries, which `publish` may call. Callbacks are plain functions
that do not block; one that raises is logged.

**Nothing per message.** No task, future or timer is made for a message by an engine: `publish` returns something that can
be awaited and that may be done already; a pattern makes a future where a user awaits.

**Errors.** A wrong argument (`UsageError`, `PayloadTooLarge`) raises where the call is made; everything else where it is
awaited. After `close`, everything raises `Closed`, and the rest settles: each watcher hears `gone`, each consumer ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

from redpoll.bus.envelope import Envelope, Outcome
from redpoll.bus.records import (
    Capabilities,
    Event,
    Publication,
    QueueInfo,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    Step,
    TaskInfo,
    Times,
)
from redpoll.bus.state import Status
from redpoll.errors import RedpollError

__all__ = [
    "Clock",
    "Consumer",
    "Delivery",
    "DeliverySink",
    "Engine",
    "EventSink",
    "Hold",
    "Listener",
    "Observer",
    "Subscription",
    "Timer",
    "Watcher",
]


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not call it."""


class Clock(Protocol):
    """The time of an engine, for its own timers and for those of patterns: time limits, back-off, schedules.

    It is the event loop itself, or what a test gives the memory engine: `redpoll.testing.VirtualTime`.
    """

    def time(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Call a plain function on the engine's loop at a time of this clock."""


class Watcher(Protocol):
    """A publisher's watcher of a task, given along with it, or later by `Engine.watch`: it receives progress and outcome.

    The calls come on the loop of the engine, in order, possibly inside of a call to the engine; nothing may raise. After
    `outcome` or `gone` no other comes.
    """

    def progress(self, envelope: Envelope, /) -> None:
        """Take a message of the worker before the end: progress of a task, a part of a streamed answer.

        Parts come in order. Where an engine loses one (the bound for a publisher that is absent, or whose loop does not keep
        up, was reached), the numbers that a pattern puts into `Envelope.meta` show it.
        """

    def outcome(self, outcome: Outcome, /) -> None:
        """Take the outcome of the task."""

    def gone(self, error: RedpollError, /) -> None:
        """Take the error for which the outcome stays unknown: the engine was closed, or cannot know."""


class Listener(Protocol):
    """A worker's listener to the changes of its task, given to a `Delivery`; its methods must not raise.

    A listener for notifications is another class, `redpoll.bus.notifications.Listener`.
    """

    def lost(self) -> None:
        """Note that the task is not this worker's any more: its outcome is refused, and another worker may begin it."""

    def cancelled(self, reason: str, /) -> None:
        """Note that the work is not wanted any more: the publisher cancelled it, or its deadline passed."""

    def told(self, envelope: Envelope, /) -> None:
        """Take a message that the publisher sent by `Engine.tell`."""


class Hold(Protocol):
    """The part of a `Delivery` for the handler of a task, also in a thread or a process."""

    @property
    def id(self) -> str:
        """The task's id."""

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""

    @property
    def envelope(self) -> Envelope:
        """The message."""

    @property
    def attempt(self) -> int:
        """1 at first, and one more for each worker that was lost with it; give-backs are none (`Capabilities.attempts`)."""

    @property
    def inputs(self) -> Sequence[tuple[str, Outcome]]:
        """The ids and the outcomes of the tasks that it came after, in the order of `Step.after`."""

    @property
    def left(self) -> float | None:
        """Seconds until its deadline, below 0 when it has passed; None if it has none."""

    @property
    def lost(self) -> bool:
        """True if it was taken away: see `Listener.lost`."""

    @property
    def cancelled(self) -> bool:
        """True if the work is not wanted any more: see `Listener.cancelled`."""

    def progress(self, envelope: Envelope, /) -> bool:
        """Say something to the watchers, in order and before the outcome; nothing is stored.

        Returns:
            False where the task is lost or nobody watches, as far as it is known at once. A sender may stop then.
        """


class Delivery(Hold, Protocol):
    """A task in the hands of a worker, from when it is handed out until it ends or goes back.

    Life is the worker's connection, not a time: a task of three days needs no setting, where `Capabilities.hold` is None.
    It ends once; later calls, and calls after the task was lost, are no-ops that return False (as an awaitable), never
    an error that ends the worker. Dropping the object changes nothing.
    """

    def listen(self, listener: Listener, /) -> None:
        """Set the listener of the task; earlier changes are reported at once.

        What the publisher says meanwhile is kept 1,000 times for a worker that does not listen yet. When the task has ended,
        the listener is let go, lest references go in a circle.
        """

    def begin(self) -> bool:
        """Note that its work begins, where it was handed to the sink of a consumer with `prefetch`, in the order of these.

        Returns:
            False: do not begin, it was lost, or has gone back as the loop was blocked.
        """

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it: at most once, as calls need it.

        The credit stays used until `ack`. If the worker is lost from now on, the task is not given out again: it ends
        as `OutcomeKind.LOST`. A worker that gives it back did not begin it.

        Returns:
            True once the engine has noted it; begin only then. False: do not begin, it is lost or cancelled.
        """

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task: record its outcome and remove it, in one step, and tell the watchers.

        Args:
            outcome: The outcome; None is a result of nothing. Any kind but DEAD, which `reject` makes; a worker that hands
                its tasks on to another engine, as a bridge does, passes on EXPIRED and LOST.
            then: Successors, which are put into their queues in the same step, whatever these hold; one whose key (`dedup`)
                another task had there before is not.

        Returns:
            True: it is recorded as surely as `Capabilities.confirm` says. False: it was lost, or has ended before.
            The credit is free at once, not only when this is done. It never raises.

        Raises:
            ResultTooLarge: The body is over `Capabilities.max_body`; the task is still held.
            PayloadTooLarge: The body of a successor is; nothing was done.
            NoRoute: A successor's queue does not exist; nothing was done.
        """

    def reject(
        self,
        *,
        requeue: bool = True,
        delay: float = 0.0,
        blame: bool = False,
        exclude: bool = False,
        reason: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Awaitable[bool]:
        """Give the task back, or up.

        Args:
            requeue: Put it back, to the front of its queue. False makes it a dead letter at once.
            delay: Seconds before it is given out again.
            blame: Count it as an attempt, as if the worker had been lost: a time limit's.
            exclude: Give it to this consumer last. When every connected one has excluded it, it waits 1 to 60 s, longer
                each time.
            reason: For its history, and for `Outcome.detail` where it becomes a dead letter.
            meta: Takes the place of `Envelope.meta` from now on, where a pattern counts something; None leaves that.

        Returns:
            False: it was lost, or has ended before.

        Raises:
            ConfigError: The delay cannot be, or a flag is neither True nor False; the task is still held.
        """

    def extend(self) -> bool:
        """Say that the work continues, where the engine cannot see that; elsewhere it does nothing.

        Returns:
            False: it was lost.
        """


DeliverySink = Callable[[Delivery], object]
"""A plain function that takes each delivery when it comes."""

EventSink = Callable[[Event], object]
"""A plain function that takes each event when it comes."""


class Consumer(Protocol):
    """Takes tasks from a queue: by iterating, or by a sink.

    The iterator survives reconnects; it ends when the consumer is closed, and raises where the engine ended it for good
    (`NoRoute`: the queue was deleted; `Closed`). With a sink it gives nothing, and waits for that end alone. Cancelling
    ``__anext__`` loses nothing.
    """

    @property
    def queue(self) -> str:
        """Name of the queue."""

    @property
    def active(self) -> bool:
        """True if the engine hands out to it; False while reconnecting, and after the queue was deleted."""

    def set_credit(self, credit: int, /) -> None:
        """Set how many deliveries may be open at a time; 0 pauses. More than that are kept until they end.

        It holds also if it is set while reconnecting. Nothing happens once the consumer is closed.
        """

    def __aiter__(self) -> Self:
        """Return itself; there is one iteration, which several tasks may share."""

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""

    async def close(self) -> None:
        """Take no more. Deliveries that were not handed to the sink or the iterator go back; open ones stay as they are."""


class Subscription(Protocol):
    """Takes events of some subjects: by iterating, or by a sink.

    Best effort: an iterator that is slow loses the oldest events beyond its buffer, and `dropped` counts them.
    """

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns."""

    @property
    def delivered(self) -> int:
        """Events that came."""

    @property
    def dropped(self) -> int:
        """Events that were lost here, as far as it is known."""

    def __aiter__(self) -> Self:
        """Return itself; there is one iteration, which several tasks may share."""

    async def __anext__(self) -> Event:
        """Wait for the next event."""

    async def close(self) -> None:
        """Take no more."""


Observer = Callable[[str, str, str, str], object]
"""A plain function that is called with (what, queue, task's id or consumer, detail): "submitted", "delivered", "done",
"requeued", "dead", "expired", "cancelled", "dropped", "declared", "deleted", "consumer", "consumer gone", "lost"."""


class Engine(Protocol):
    """Queues and subjects, somewhere. Made by `redpoll.bus.connect`, and used as an async context manager.

    See the module's docstring for what holds for all methods. Cancelling an awaited method withdraws what was not begun
    and leaves the rest, unless it says otherwise.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Its abilities; known once it is ready."""

    @property
    def status(self) -> Status:
        """Its state."""

    @property
    def clock(self) -> Clock:
        """Its time."""

    async def __aenter__(self) -> Self:
        """Start on the running loop, and connect.

        Raises:
            DialFailed: Nothing answered in time, and `wait` was not set.
            UsageError: It was started before.
        """

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop: hand out nothing more, wait for open deliveries, give the rest back without blame, disconnect.

        Args:
            drain: Seconds to wait for open deliveries; None is no limit.

        A second call waits for the first. Cancelled, it stops waiting for deliveries and closes at once.
        """

    # -- queues

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Make sure that a queue is there.

        Args:
            spec: The settings.
            update: Change what differs: limits, ttl, max_attempts, dead_letter, expires, topics.

        Raises:
            SpecConflict: It is there and differs, in a field that never changes or without `update`.
            NotAuthorized: Its use, or that of the queue named as `dead_letter`, is not allowed.
            Unsupported: The engine cannot do what a field says.
        """

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue: its tasks end as cancelled, its consumers end, its dead letters and its schedules go.

        Args:
            queue: Its name.
            if_unused: Leave it if it has tasks or consumers.

        Raises:
            NoRoute: It is not there.
        """

    async def queues(self) -> list[str]:
        """The names of all queues."""

    async def inspect(self, queue: str) -> QueueInfo:
        """Return the contents and counters of a queue.

        Raises:
            NoRoute: It is not there.
        """

    # -- publishing

    def publish(
        self,
        envelope: Envelope,
        *,
        queue: str | None = None,
        subject: str | None = None,
        watcher: Watcher | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        deadline: float | None = None,
        dedup: str | None = None,
        keep: bool = True,
        mandatory: bool = False,
        last: int = 0,
        confirm: bool = True,
        timeout: float | None = None,
    ) -> Awaitable[Receipt]:
        """Put a task into a queue, or send an event to a subject.

        One sender's tasks of one priority are given out in the order of the calls, while nothing is redelivered.

        Args:
            envelope: The message; the engine keeps it, so its body must not change.
            queue: To this queue; one consumer is given it. Either this or `subject`.
            subject: To every live subscription that matches, best effort, and into every queue with a matching topic: all
                of these have it, or none. The options that follow, up to `keep`, are for queues alone.
            watcher: Is told of progress and outcome. The engine holds on to it until then.
            priority: Higher ones are given out first; above the queue's highest counts as that.
            delay: Seconds before it can be given out.
            ttl: Seconds after which it expires if it was not begun. None: the queue's.
            deadline: Seconds after which it expires even if it was begun: its worker is told that it is cancelled, and what
                it answers later is refused. Instead of a ttl. Both begin now, whatever `delay` is.
            dedup: A key: if a task with it was put into this queue before (1 h, and 1 M keys), nothing is put there, and the
                receipt is that of the first, which `watcher` then watches.
            keep: Store the outcome, if the engine stores outcomes; False is for calls, and outcomes not looked up.
            mandatory: `NoRoute` at once if the queue has no consumer, or nobody takes that subject, as far as the engine
                can know. A queue that does not exist is `NoRoute` in any case.
            last: Keep the last so many events of this subject for later subscribers; 0 keeps none more.
            confirm: False is done when the message is on its way; what goes wrong afterwards is not known.
            timeout: Seconds to wait for room, and for the confirmation. None: no limit, but that an engine may have one for
                the time in which its broker is away; 0: do not wait.

        Returns:
            An awaitable of the receipt, once the queue has it as surely as `Capabilities.confirm` says. Many may be open,
            and are accepted in order. It may be awaited once, or not at all. Cancelled, it withdraws what waits for room,
            and cancels a watched task whose outcome is not kept, as nobody would read it.

        Raises:
            PayloadTooLarge: The body is over `Capabilities.max_body`.
            UsageError: Not exactly one of queue and subject; both ttl and deadline; a value that cannot be.
            NoRoute: See above (when awaited, as those below). Never sent.
            QueueFull: There is no room, and the queue refuses (`at_limit`), or too many wait. Never sent.
            Expired: There was no room, or no connection, in time; or a ttl or deadline was over before. Never sent.
            NotConfirmed: It was sent, and no confirmation came (also a `TimeoutError` when by `timeout`).
            NotAuthorized: It is not allowed. Never sent.
        """

    def publish_many(
        self,
        envelopes: Iterable[Envelope],
        *,
        queue: str,
        watchers: Iterable[Watcher] | None = None,
        dedup: Iterable[str] | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keep: bool = True,
        timeout: float | None = None,
    ) -> Awaitable[list[Receipt]]:
        """Put many tasks into a queue, in order, at the cost of fewer steps than one by one.

        Args:
            envelopes: The messages.
            queue: Name of the queue.
            watchers: One for each.
            dedup: A key for each.
            priority: As for `publish`, of all of them, as what follows.
            delay: As for `publish`.
            ttl: As for `publish`.
            keep: As for `publish`.
            timeout: As for `publish`, for all of them together.

        Raises:
            BatchError: The first that failed, with its index; those before it are in the queue, none behind it is.
            PayloadTooLarge: One of the bodies is over the limit; none was sent.
        """

    async def publish_steps(
        self, steps: Sequence[Step], *, watchers: Sequence[Watcher | None] | None = None, timeout: float | None = None
    ) -> list[Receipt]:
        """Put tasks into their queues, of which some come after others: all of them in one step, or none.

        One that comes after others is begun when all of these have their outcomes, and is put into the line of its queue in
        the step that records the last of them. It is handed out with them (`Delivery.inputs`), which are kept as long as it
        is there, count against the limit of its queue, and are stored whatever `Publication.keep` says. Where one of them is
        no result it is cancelled in that step, and so are those that come after it, unless `Step.collect` says otherwise.

        Args:
            steps: The tasks, 1 to 10,000, each behind those that it comes after; with `max_body` for all of their bodies. A
                durable one comes after durable ones alone. The last one may have a key, which is that of all of them.
            watchers: One for each, or None: see `publish`.
            timeout: As for `publish`: each queue has to have room for those that are for it, or be empty.

        Returns:
            Their receipts; where the last one's key is known, the receipt of that task alone, which the last watcher watches:
            nothing was published.

        Raises:
            Unsupported: The engine has no such tasks.
            UsageError: The steps cannot be.
            PayloadTooLarge, NoRoute, QueueFull, Expired, NotConfirmed, NotAuthorized: As for `publish`, of all of them.

        Cancelled, it withdraws what waits for room.
        """

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
        prefetch: bool = False,
    ) -> Consumer:
        """Take tasks from a queue as they come.

        Among consumers with credit the one that was served least recently is next.

        Args:
            queue: Its name.
            credit: Maximum number of open deliveries: free slots.
            sink: Is called with each; without it, iterate.
            accept: Accept each as it is handed out, as `Delivery.accept` does: the way of rpc, at no further step. One that
                was not begun can be given back by `Delivery.reject`. Of a durable queue a hand-out that was not on disk
                when the engine's own server died may come again; `Delivery.accept` waits for that.
            exclusive: Refuse if there is another consumer, and let no other join.
            prefetch: Keep some tasks here beyond `credit`, for a sink whose deliveries end fast. They are handed to it in
                order, as there is credit; until then they are not begun: they go back without blame, soon where they wait for
                long, and at once at the end. Only while no consumer of the queue has credit; not of a queue with priorities,
                nor tasks that have a ttl or a history. The sink calls `Delivery.begin` as it begins one: where the loop is
                blocked, others than these go back. An engine without a way to a server ignores it.

        Raises:
            NoRoute: The queue does not exist.
            SpecConflict: `exclusive` cannot be had, or another consumer has it.
            NotAuthorized: It is not allowed.
        """

    async def take(self, queue: str, timeout: float | None = 0.0) -> Delivery:
        """Take one task, in turn with the consumers.

        Args:
            queue: Its name.
            timeout: Seconds to wait for one; 0 (default) does not wait; None is no limit.

        Raises:
            QueueEmpty: None came in time.
            NoRoute: The queue does not exist, or was deleted meanwhile.
            SpecConflict: A consumer has the queue exclusively.
            DecodeError: The task that was next cannot be read, and is a dead letter now; of ``redpoll://``.
        """

    async def subscribe(
        self,
        patterns: Iterable[str],
        *,
        sink: EventSink | None = None,
        last: bool = False,
        buffer: int = 1_000,
    ) -> Subscription:
        """Take the events of the subjects that match, once each, from when this returns.

        Args:
            patterns: Subjects with ``*`` for one word and ``#`` for any number of them.
            sink: Is called with each; without it, iterate.
            last: Take the events first that were kept for these subjects.
            buffer: Events that wait for the iterator at most.

        Raises:
            ConfigError: A pattern cannot be one.
            NotAuthorized: It is not allowed.
        """

    # -- tasks that are somewhere

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Cancel a task, or a call.

        Once this returns the task is not begun any more. One that was not begun is withdrawn; the worker of another is
        asked to stop (`Delivery.cancelled`), and if it dies or gives the task back, that is cancelled. An outcome that was
        recorded first wins.

        Raises:
            UnknownTask: There is none with that id.
        """

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Send a message to the worker of a task: the other direction of `Delivery.progress`.

        Where the link to a hub is lost before the answer it is sent again, and may arrive twice.

        Returns:
            False: nobody works on it.
        """

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task.

        Raises:
            UnknownTask: There was none with that id.
            ResultExpired: It ended, and its outcome is not kept.
            Unsupported: The engine has live results alone.
        """

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Watch a task that was submitted before, perhaps by another program; a recorded outcome is reported at once.

        Raises:
            UnknownTask: There was none with that id.
            ResultExpired: It ended, and its outcome is not kept.
            Unsupported: The engine has live results alone.
        """

    # -- schedules

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Put a task into a queue again and again, in the place of the schedule of that name.

        A firing and the time of the next one are recorded in one step. A queue that is full is passed over. A schedule
        lives as long as its queue.

        Args:
            name: Name of the schedule.
            publication: The task.
            times: Its times.

        Raises:
            ConfigError: A name or a time is invalid.
            NoRoute: The queue does not exist.
            QueueFull: There are too many schedules.
            NotAuthorized: Submitting to the queue, or to that of the replaced schedule, is not allowed.
            Unsupported: The engine keeps no schedules.
        """

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return False if there is none of that name."""
        ...

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules."""
        ...

    # -- administration: each needs the permission to administer that queue

    async def browse(
        self, queue: str, state: Literal["ready", "delayed", "taken", "dead"] = "ready", limit: int = 100
    ) -> list[TaskInfo]:
        """Look at tasks, the next ones first, and change nothing; an engine may return fewer than the limit."""

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait (they end as cancelled), or the dead letters.

        Returns:
            How many.
        """

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Move ready tasks to another queue, whatever that holds; they keep their ids.

        Returns:
            How many.

        Raises:
            ConfigError: The queues are the same, or the limit cannot be.
        """

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Hand nothing out, or do so again; what workers have stays with them."""

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Put dead letters back into their queue, as new tasks that name the old ones as `TaskInfo.origin`.

        Args:
            queue: Its name.
            tasks: Ids of some; None is all.

        Returns:
            The ids of the new tasks.
        """

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a function with everything that happens in this engine's queues, on this engine's loop; it is slower then.

        Best effort: a loop that does not keep up misses calls beyond a bound of the engine.

        Returns:
            A function that ends this.
        """
