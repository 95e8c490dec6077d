"""SIGKILL at any point of a script, at either end: nobody hangs or spins, and whoever comes next is served."""

from __future__ import annotations

import random
from uuid import uuid4

import pytest

from tests.nq.survival.conftest import LITTLE, Yard

#: Lines that a client writes, about: it is killed somewhere between its first and its last.
LINES = {"greet": 7, "volley": 160, "both": 160}

SECRET = b"known to this id"

short = pytest.mark.parametrize("seed", range(4))
night = pytest.mark.parametrize("seed", range(4, 60))


def _killed_client(yard: Yard, seed: int) -> None:
    draw = random.Random(seed)
    script = draw.choice(sorted(LINES))
    after = draw.randrange(LINES[script] + 10)
    comes_back = draw.choice(("never", "anew", "with its secret", "without"))
    server = yard.start("serve").wait_ready()
    beside = yard.start("both")
    client = yard.start(script, secret=SECRET)
    client.wait_lines(after)
    client.kill()
    again = client
    if comes_back != "never":
        identity = uuid4() if comes_back == "anew" else client.plan.id
        secret = SECRET if comes_back == "with its secret" else None
        again = yard.start(script, id=identity, secret=secret, persists=True)
    assert beside.ended() == []
    if again is not client:
        assert again.ended() == []
    assert server.computed(0.3) < LITTLE
    assert yard.start("finish").ended() == []
    assert server.ended() == []


@short
def test_a_client(yard: Yard, seed: int) -> None:
    """The server goes on with its other clients, and with those that come, the killed one among them."""
    _killed_client(yard, seed)


@night
@pytest.mark.nightly
def test_a_client_at_many_points(yard: Yard, seed: int) -> None:
    """The same at many more points."""
    _killed_client(yard, seed)


def _killed_server(yard: Yard, seed: int) -> None:
    draw = random.Random(seed)
    script = draw.choice(sorted(LINES))
    after = draw.randrange(LINES[script])
    comes_back = draw.choice(("never", "anew", "with its secret", "without"))
    server = yard.start("serve", secret=SECRET).wait_ready()
    client = yard.start(script, persists=comes_back != "never")
    client.wait_lines(after)
    server.kill()
    if comes_back == "never":
        assert client.computed(0.3) < LITTLE
        # It was told, unless it had all, or had met no server, for which it would wait.
        client.until(lambda: client.logged("closed") or not client.logged("got"), "its end")
        return
    identity = uuid4() if comes_back == "anew" else server.plan.id
    secret = SECRET if comes_back == "with its secret" else None
    again = yard.start("serve", id=identity, secret=secret)
    assert client.ended() in ([], ["ConnectionResetError"])
    assert yard.start("finish").ended() == []
    assert again.ended() == []


@short
def test_a_server(yard: Yard, seed: int) -> None:
    """A client is told, or goes on with the next server there."""
    _killed_server(yard, seed)


@night
@pytest.mark.nightly
def test_a_server_at_many_points(yard: Yard, seed: int) -> None:
    """The same at many more points."""
    _killed_server(yard, seed)
