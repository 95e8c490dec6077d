"""Processes that start again with their id and secret: they get what their predecessors had not confirmed, and stay alone."""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import pytest

from tests.blocking.support import PATIENCE
from tests.nq.support import World
from tests.nq.survival.conftest import Yard
from tests.nq.survival.programs import LAST, Running

MANY = 2000

SECRET = b"known to this id"

RESUME = 1.0

confirms = pytest.mark.parametrize("confirm", ["receive", "get"])


def check(former: Running, later: Running, puts: list[Any], confirm: str) -> None:
    """All that the former process had not confirmed came to the later one, in order, marked if it may be there twice."""
    had = [number for number, _ in former.numbers]
    got = later.numbers
    assert had == list(range(len(had)))
    numbers = [number for number, _ in got]
    # Of what it got last it may not have written one down; what it got is confirmed a little later.
    first = MANY + 1 - len(numbers)
    assert numbers == [*range(first, MANY), LAST]
    assert confirm == "receive" or first <= len(had) + 1
    marks = [mark for _, mark in got]
    assert marks == sorted(marks, reverse=True)
    assert all(mark for number, mark in got if number in set(had))
    assert [put.exception(PATIENCE) for put in puts] == [None] * len(puts)


@confirms
@pytest.mark.parametrize("seed", range(3))
def test_a_client(world: World, yard: Yard, confirm: str, seed: int) -> None:
    """A client that is killed while it gets, and starts again, goes on where it was."""
    server = world.server(resume=PATIENCE)
    given: dict[str, Any] = {"id": uuid4(), "secret": SECRET, "connection": {"confirm": confirm, "resume": PATIENCE}}
    former = yard.start("receive", **given).wait_ready()
    former.until(lambda: given["id"] in server.endpoint.sessions, "its hello")
    puts = [server.put(number, given["id"]) for number in range(MANY)]
    former.wait_lines(1 + random.Random(seed).randrange(MANY // 2))
    former.kill()
    later = yard.start("receive", **given)
    puts.append(server.put(LAST, given["id"]))
    assert later.ended() == []
    check(former, later, puts, confirm)


@confirms
@pytest.mark.parametrize("identity", ["its own", "another"])
def test_a_server(world: World, yard: Yard, confirm: str, identity: str) -> None:
    """A server that is killed while it gets, and another in its place: the client's puts go on where they were."""
    given: dict[str, Any] = {"secret": SECRET, "connection": {"confirm": confirm}}
    own = uuid4()
    former = yard.start("collect", id=own, **given).wait_ready()
    client = world.met(resume=PATIENCE)
    puts = [client.put(number) for number in range(MANY)]
    former.wait_lines(1 + MANY // 3)
    former.kill()
    later = yard.start("collect", id=own if identity == "its own" else uuid4(), **given)
    puts.append(client.put(LAST))
    client.close()
    assert later.ended() == []
    check(former, later, puts, confirm)


def test_without_the_secret(world: World, yard: Yard) -> None:
    """Who has the id alone is let in when its former owner is given up, and gets nothing of what was for that one."""
    server = world.server(resume=RESUME)
    identity = uuid4()
    former = yard.start("receive", id=identity, secret=SECRET, connection={"confirm": "get"})
    former.until(lambda: identity in server.endpoint.sessions, "its hello")
    former.freeze()
    before = [server.put(number, identity) for number in range(10)]
    former.kill()
    later = yard.start("receive", id=identity)
    for put in before:
        assert type(put.exception(PATIENCE)) is ConnectionResetError
    later.until(lambda: identity in server.endpoint.sessions, "its hello")
    after = [server.put(number, identity) for number in (7, LAST)]
    assert later.ended() == []
    assert [put.result() for put in after] == [None, None]
    assert later.numbers == [(7, False), (LAST, False)]


def test_the_older_self_is_fenced(world: World, yard: Yard) -> None:
    """One that stood still while another took its place is told so when it goes on, and does that one no harm."""
    server = world.server(resume=PATIENCE)
    given: dict[str, Any] = {"id": uuid4(), "secret": SECRET, "connection": {"confirm": "get"}}
    former = yard.start("receive", **given)
    former.until(lambda: given["id"] in server.endpoint.sessions, "its hello")
    server.put(0, given["id"]).result()
    former.freeze()
    puts = [server.put(number, given["id"]) for number in range(1, 10)]
    later = yard.start("receive", **given)
    later.until(lambda: len(later.numbers) == 9, "all numbers")
    former.thaw()
    assert former.ended() == ["ConnectionAbortedError"]
    puts += [server.put(10, given["id"]), server.put(LAST, given["id"])]
    assert later.ended() == []
    assert [put.exception() for put in puts] == [None] * 11
    assert [number for number, _ in later.numbers] == [*range(1, 11), LAST]
    assert all(mark for number, mark in later.numbers if 0 < number < 10)
