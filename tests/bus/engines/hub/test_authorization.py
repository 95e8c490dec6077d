"""Who may ask a hub for what: each record and each call, by the permissions of who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any, get_args

import pytest

from redpoll.bus import QueueSpec
from redpoll.bus.broker import Permissions
from redpoll.bus.broker.permissions import Word
from redpoll.bus.broker.queue import PLAIN, Task
from redpoll.bus.broker.schedules import Schedule
from redpoll.bus.engines.hub import authorization
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.authorization import RULES, authorize
from redpoll.bus.engines.hub.calls import CALLS
from redpoll.bus.engines.hub.requests import REQUESTS
from redpoll.bus.envelope import OutcomeKind
from redpoll.errors import NotAuthorized, ProtocolError, UsageError
from tests.bus.broker.support import Desk

NAMES = ("q", "calc", "news")


def ask(desk: Desk, words: dict[str, list[str]], *record: Any, who: str = "ann") -> None:
    """Ask for something with these permissions, as the hub does; the record has its request and the like."""
    if record[0] == p.CALL:
        p.check_call(record[2], record[3])
    authorize(Permissions("ann", words), desk.broker, desk.join(who), list(record))


def spec(name: str, **options: Any) -> dict[str, Any]:
    """The settings of a queue, as they are sent."""
    return {**asdict(QueueSpec(name, **options)), "topics": list(options.get("topics", ()))}


def test_nothing_is_forgotten() -> None:
    """Each record of clients and each call by name has a rule, and something that carries it out."""
    assert RULES.keys() == (p.FROM_CLIENTS.keys() - {p.HELLO, p.ALIVE, p.BEGUN, p.CALL}) | CALLS.keys()
    assert CALLS.keys() == p.CALLS.keys()
    assert REQUESTS.keys() == p.FROM_CLIENTS.keys() - {p.HELLO, p.ALIVE, p.BEGUN, p.GOODBYE, p.CALL}


def test_a_watcher_is_not_the_submitter() -> None:
    """A client that watches a task of another one, which nobody watched, may not cancel it for that."""
    desk = Desk()
    number = desk.number()
    desk.broker.intake.watch(desk.join("ann"), number, "watch", 0.0)
    with pytest.raises(NotAuthorized):
        ask(desk, {"read results": ["#"]}, p.CALL, 1, "cancel", [p.id_bytes(number)])


def test_tasks_that_are_published_together() -> None:
    """Each of their queues has to be allowed; what is no task is refused."""
    desk, _ = desk_of_all()
    desk.declare("other")
    tasks = [[[name, b"", {}], [], False, 0] for name in ("q", "other")]
    with pytest.raises(NotAuthorized, match="may not submit 'other'"):
        ask(desk, {"submit": ["q"]}, p.STEPS, 1, tasks, None)
    ask(desk, {"submit": ["q", "other"]}, p.STEPS, 1, tasks, None)
    for wrong in (None, [], [["q"]]):
        with pytest.raises(ProtocolError):
            ask(desk, {"submit": ["#"]}, p.STEPS, 1, [wrong], None)


def test_a_schedule_of_another_queue() -> None:
    """A schedule is replaced, and removed, only by a client that may submit to its queue too."""
    desk, _ = desk_of_all()
    desk.declare("other")
    for words in ({"submit": ["other"]}, {"work": ["q"]}):
        with pytest.raises(NotAuthorized):
            ask(desk, words, p.CALL, 1, "unschedule", ["hourly"])
    with pytest.raises(NotAuthorized):
        ask(
            desk,
            {"submit": ["other"]},
            p.CALL,
            1,
            "schedule",
            ["hourly", ["other", b"", {}], 60.0, None, "UTC", "once"],
        )
    ask(desk, {"submit": ["q"]}, p.CALL, 1, "unschedule", ["hourly"])


def desk_of_all() -> tuple[Desk, bytes]:
    """A broker with a queue of each kind, and a task that somebody else submitted."""
    desk = Desk()
    desk.declare("rpc:calc", kind="rpc")
    desk.declare("broadcast:news", kind="events")
    desk.broker.schedules.set(Schedule("hourly", "q", b"", 0, PLAIN, 3_600.0, None), 0.0)
    return desk, p.id_bytes(desk.number("x"))


#: What can be asked for, by the words of which each allows it.
ASKED: list[tuple[set[str], Callable[[bytes], list[Any]]]] = [
    ({"submit"}, lambda _: [p.PUBLISH, 1, "q", b"", False]),
    ({"call"}, lambda _: [p.PUBLISH, 1, "rpc:calc", b"", False]),
    ({"administer"}, lambda _: [p.PUBLISH, 1, "broadcast:news", b"", False]),
    ({"submit"}, lambda _: [p.STEPS, 1, [[["q", b"", {}], [], False, 0]], None]),
    ({"publish"}, lambda _: [p.EVENT, 1, "news", b"", False, 0, None]),
    ({"publish"}, lambda _: [p.EVENT, 1, "broadcast.news", b"", False, 0, None]),
    ({"publish"}, lambda _: [p.EVENT, 1, "notifications.news", b"", False, 0, None]),
    ({"call"}, lambda _: [p.EVENT, 1, "rpc.calc", b"", False, 0, None]),
    ({"serve"}, lambda _: [p.SUBSCRIBE, 1, 1, ["rpc.calc"], False]),
    ({"subscribe"}, lambda _: [p.SUBSCRIBE, 1, 1, ["broadcast.news", "notifications.news"], False]),
    ({"work"}, lambda _: [p.CONSUME, 1, 1, "q", 1, False, False, True]),
    ({"serve"}, lambda _: [p.CONSUME, 1, 1, "rpc:calc", 1, True, False, True]),
    ({"subscribe"}, lambda _: [p.CONSUME, 1, 1, "broadcast:news", 1, True, False, True]),
    ({"work"}, lambda _: [p.TAKE, 1, 1, "q"]),
    ({"subscribe"}, lambda _: [p.SUBSCRIBE, 1, 1, ["news"], False]),
    ({"submit"}, lambda _: [p.DONE, 1, 1, 1, 0, None, "", [["q", b"", {}]]]),
    ({"read results"}, lambda task: [p.WATCH, 1, task]),
    ({"read results", "administer"}, lambda task: [p.CALL, 1, "lookup", [task]]),
    ({"submit", "administer"}, lambda task: [p.CALL, 1, "cancel", [task]]),
    ({"submit", "administer"}, lambda task: [p.CALL, 1, "tell", [task, b""]]),
    ({"submit", "work", "administer"}, lambda _: [p.CALL, 1, "declare", [spec("q"), False]]),
    ({"call", "serve", "administer"}, lambda _: [p.CALL, 1, "declare", [spec("rpc:calc", kind="rpc"), False]]),
    ({"administer"}, lambda _: [p.CALL, 1, "declare", [spec("q", ttl=1.0), True]]),
    ({"submit", "work", "administer"}, lambda _: [p.CALL, 1, "inspect", ["q"]]),
    ({"submit"}, lambda _: [p.CALL, 1, "schedule", ["nightly", ["q", b"", {}], 60.0, None, "UTC", "once"]]),
    ({"call"}, lambda _: [p.CALL, 1, "schedule", ["nightly", ["rpc:calc", b"", {}], 60.0, None, "UTC", "once"]]),
    ({"submit"}, lambda _: [p.CALL, 1, "unschedule", ["hourly"]]),
    ({"administer"}, lambda _: [p.CALL, 1, "delete", ["q", False]]),
    ({"subscribe", "administer"}, lambda _: [p.CALL, 1, "delete", ["broadcast:news", False]]),
    *(
        ({"administer"}, lambda _, name=name, rest=rest: [p.CALL, 1, name, ["q", *rest]])
        for name, rest in (("browse", ["ready", 1]), ("purge", ["ready"]), ("pause", [True]), ("redrive", [None]))
    ),
]


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_each_word(number: int) -> None:
    """What is asked for is allowed by its own words, each of them alone, and by no other; nor for other names."""
    words, make = ASKED[number]
    desk, task = desk_of_all()
    for word in ("submit", "work", "call", "serve", "publish", "subscribe", "read results", "administer"):
        if word in words:
            ask(desk, {word: list(NAMES)}, *make(task))
            with pytest.raises(NotAuthorized):
                ask(desk, {word: ["other"]}, *make(task))
        else:
            with pytest.raises(NotAuthorized, match="'ann' may not"):
                ask(desk, {word: list(NAMES)}, *make(task))


def test_all_of_it() -> None:
    """What is about all queues needs permission for all; a move needs both ends."""
    desk, _ = desk_of_all()
    desk.declare("z")
    with pytest.raises(NotAuthorized):
        ask(desk, {"administer": ["q", "*"]}, p.CALL, 1, "observe", [True])
    ask(desk, {"administer": ["#"]}, p.CALL, 1, "observe", [True])
    for pattern in ("#", "*.calc", "#.q"):
        with pytest.raises(NotAuthorized, match="may not serve '#'"):
            ask(desk, {"subscribe": ["#"], "serve": ["calc"]}, p.SUBSCRIBE, 1, 1, [pattern], False)
        ask(desk, {"subscribe": ["#"], "serve": ["#"]}, p.SUBSCRIBE, 1, 1, [pattern], False)
    with pytest.raises(NotAuthorized, match="may not submit 'z'"):
        ask(desk, {"administer": ["q"]}, p.CALL, 1, "move", ["q", "z", None])
    ask(desk, {"administer": ["q"], "submit": ["z"]}, p.CALL, 1, "move", ["q", "z", None])


def test_naming_a_queue_in_settings_needs_submit_there() -> None:
    """Who may use a queue cannot make its dead letters fill another one, nor bind it to subjects of others."""
    desk, _ = desk_of_all()
    words = {"submit": ["mine", "new"], "subscribe": ["my.#"]}
    ask(desk, words, p.CALL, 1, "declare", [spec("mine"), False])
    for name in ("other", "secret:mine"):
        with pytest.raises(NotAuthorized, match=f"may not use '{name}'"):
            ask(desk, words, p.CALL, 1, "declare", [spec(name), False])
    for target in ("q", "rpc:calc", "not-there-yet"):
        with pytest.raises(NotAuthorized, match=r"may not (submit|call)"):
            ask(desk, words, p.CALL, 1, "declare", [spec("new", dead_letter=target), False])
    with pytest.raises(NotAuthorized, match="may not submit 'q'"):
        ask(desk, words, p.CALL, 1, "schedule", ["hourly", ["mine", b"", {}], 60.0, None, "UTC", "once"])
    with pytest.raises(NotAuthorized, match="may not subscribe to"):
        ask(desk, words, p.CALL, 1, "declare", [spec("new", topics=("#",)), False])
    ask(desk, words, p.CALL, 1, "declare", [spec("new", topics=("my.news",), dead_letter="mine"), False])


def test_the_submitters_own() -> None:
    """A task that a client submitted is its own to watch and to cancel; one that is done is asked for by the queue's name."""
    desk, _ = desk_of_all()
    made = desk.submit("y")
    assert isinstance(made, Task)
    task = p.id_bytes(made.id)
    ask(desk, {}, p.WATCH, 1, task, who="boss")
    ask(desk, {}, p.CALL, 1, "cancel", [task], who="boss")
    desk.broker.tasks.end(made, OutcomeKind.RESULT, monotonic(), "z", 1)  # the clock of `authorize`
    with pytest.raises(NotAuthorized, match="may not read results 'q'"):
        ask(desk, {}, p.WATCH, 1, task, who="boss")
    ask(desk, {"read results": ["q"]}, p.WATCH, 1, task)
    # What never was there is told by the call itself.
    ask(desk, {}, p.CALL, 1, "lookup", [bytes(16)])


@pytest.mark.parametrize("queue", ["q", "rpc:calc"])
def test_what_a_worker_holds(queue: str) -> None:
    """A worker, and a server of calls, may look up a task while it holds it, and no other one."""
    desk, _ = desk_of_all()
    word = "serve" if queue.startswith("rpc") else "work"
    words = {word: [queue.removeprefix("rpc:")]}
    held, other = (p.id_bytes(desk.number("y", queue)) for _ in range(2))
    worker = desk.consume("ann", 1, queue)
    if queue == "q":  # which has an earlier one
        desk.settle(worker)
    ask(desk, words, p.CALL, 1, "lookup", [held])
    for task, who in ((other, "ann"), (held, "ben")):
        with pytest.raises(NotAuthorized):
            ask(desk, words, p.CALL, 1, "lookup", [task], who=who)
    desk.reject(worker, exclude=True)
    with pytest.raises(NotAuthorized):
        ask(desk, words, p.CALL, 1, "lookup", [held])


def test_arguments_that_cannot_be() -> None:
    """A call with wrong arguments breaks the rules, and one that is not known is refused by itself."""
    desk = Desk()
    for arguments in ([], ["q", 1, 2, 3], [{"nonsense": 1}, False]):
        with pytest.raises(ProtocolError):
            ask(desk, {}, p.CALL, 1, "declare", arguments)
    with pytest.raises(ProtocolError):
        ask(desk, {}, p.DONE, 1, 1, 1, 0, None, "", [7])
    for patterns in ([], [1]):
        with pytest.raises(ProtocolError):
            ask(desk, {}, p.SUBSCRIBE, 1, 1, patterns, False)
    with pytest.raises(UsageError, match="has no call 'nonsense'"):
        ask(desk, {"administer": ["#"]}, p.CALL, 1, "nonsense", [])


def test_what_has_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record or a call without a rule is denied, whatever is allowed."""
    everything = {word: ["#"] for word in get_args(Word)}
    for key, record in ((p.SETTLE, [p.SETTLE]), ("queues", [p.CALL, 1, "queues", []])):
        ask(Desk(), everything, *record)
        monkeypatch.setattr(authorization, "RULES", {each: rule for each, rule in RULES.items() if each != key})
        with pytest.raises(NotAuthorized, match="has no rule for it"):
            ask(Desk(), everything, *record)
        monkeypatch.undo()
