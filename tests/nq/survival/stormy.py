"""What communicators do while Ctrl-C interrupts them, and the account of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from redpoll import nq
from tests.storms import Storm, all_end, confirmed, no_loop_is_left, run_script, within


def make(purpose: str, port: int, **options: Any) -> nq.Communicator:
    """One end, of which nothing is given up while a storm lasts."""
    connection = nq.ConnectionOptions(**{"resume": 60.0, **options})
    return nq.new("tcp", purpose, nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port), connection=connection))


def pair(server: dict[str, Any] | None = None, **options: Any) -> tuple[nq.Communicator, nq.Communicator]:
    """A server and its client."""
    serving = make("server", 0, **(server or {}))
    client = make("client", serving.netloc.port, **options)
    client.ready(10)
    return serving, client


def get(storm: Storm, chance: random.Random) -> None:
    """Get what another thread puts: each message is got once, in order."""
    server, client = pair({"confirm": chance.choice(("get", "receive"))})
    got: list[int] = []
    puts: list[Future[None]] = []

    def put() -> None:
        while not storm.over:
            if len(puts) - len(got) < 50:
                puts.append(client.put(len(puts)))
            else:
                time.sleep(0.0005)

    def get_one() -> Any:
        try:
            return server.get(timeout=chance.choice((1, 0, 0.001, 0.2)))
        except TimeoutError:
            return None

    putting = threading.Thread(target=put)
    storm.begin()
    putting.start()
    while not storm.over:
        returned, message = storm.attempt(get_one)
        if returned and message is not None:
            got.append(message.data)
    putting.join()
    while len(got) < len(puts):
        got.append(server.get(timeout=10).data)
    assert got == list(range(len(puts)))
    all_end(puts, "a put")
    assert all(each.exception() is None for each in puts)
    close(client, server)


def put(storm: Storm, chance: random.Random) -> None:
    """Put, wait for puts and cancel some: what was confirmed was delivered, and each put ends."""
    full = chance.choice(("refuse", "wait"))
    server, client = pair(full=full, queue_size=20 if full == "wait" else 2**20)
    got: list[int] = []
    puts: dict[int, Future[None]] = {}

    def get_all() -> None:
        try:
            while True:
                got.append(server.get().data)
        except ConnectionError:
            pass

    def wait() -> None:
        last: Any = next(reversed(puts.values()))
        last.cancelled() or last.exception()

    getting = threading.Thread(target=get_all, daemon=True)
    getting.start()
    storm.begin()
    number = 0
    while not storm.over:
        returned, future = storm.attempt(partial(client.put, number))
        if returned:
            puts[number] = future
            storm.attempt(chance.choice((bool, bool, bool, wait, future.cancel)))
        number += 1
    all_end(puts.values(), "a put")
    close(client, server)
    within(getting.join, "a get")
    assert not confirmed(puts) - set(got)
    assert got == sorted(set(got))


def closing(storm: Storm, chance: random.Random) -> None:
    """Close one of both: whatever waits on it ends."""
    storm.begin()
    while not storm.over:
        server, client = pair()
        puts = [client.put(number) for number in range(chance.randrange(30))]
        threads = [
            threading.Thread(target=gets, args=(client,)),
            threading.Thread(target=all_end, args=(puts, "a put")),
        ]
        for thread in threads:
            thread.start()
        end, other = chance.choice(((server, client), (client, server)))
        options: list[dict[str, Any]] = [{"timeout": 0.05}, {"timeout": 0}, {"flush": False}]
        chosen = chance.choice(options if end is server else [*options, {}])
        for _ in range(chance.randrange(1, 6)):
            if storm.attempt(partial(end.close, **chosen))[0]:
                break
        close(end, other)
        for thread in threads:
            within(thread.join, "a get, or a put")


def gets(queue: nq.Communicator) -> None:
    """Get until the end."""
    try:
        while True:
            queue.get()
    except ConnectionError:
        pass


def start(storm: Storm, chance: random.Random) -> None:  # each script's
    """Make communicators: none of those that were interrupted is left."""
    make("server", 0).close()
    storm.begin()
    while not storm.over:
        returned, server = storm.attempt(partial(make, "server", 0))
        if returned:
            storm.attempt(server.close)
            close(server)
        del server
    no_loop_is_left()


def close(*ends: nq.Communicator) -> None:
    """Close for good."""
    for each in ends:
        within(partial(each.close, timeout=2), "close")


SCRIPTS: dict[str, Callable[[Storm, random.Random], None]] = {"get": get, "put": put, "close": closing, "start": start}

if __name__ == "__main__":
    run_script(SCRIPTS)
