"""Whole programs: that fork while threads put and get, that end without closing, and that are interrupted."""

from __future__ import annotations

from uuid import uuid4

import pytest

from redpoll import nq
from tests.blocking.support import run_program
from tests.nq.survival.conftest import Yard
from tests.nq.survival.programs import SCRIPTS

#: What a program of these begins with.
HERE = """
import os, sys, threading
from redpoll import nq, UsageError

def make(purpose, **given):
    netloc = nq.NetworkLocation("HOST", PORT)
    connection = nq.ConnectionOptions(resume=2.0)
    return nq.new("PROTOCOL", purpose, nq.CommunicatorOptions(netloc=netloc, connection=connection, **given))
"""

FORKS = """
server = make("server")
client = make("client")
client.ready()
stop = threading.Event()
counts = {"put": 0, "got": 0}

def put_on():
    while not stop.is_set():
        client.put(counts["put"]).result()
        counts["put"] += 1

def get_on():
    while True:
        message = server.get()
        if message.data == "end":
            break
        if isinstance(message.data, int):
            assert message.data == counts["got"], message.data
            counts["got"] += 1

threads = [threading.Thread(target=each) for each in (put_on, get_on)]
for thread in threads:
    thread.start()
for number in range(6):
    child = os.fork()
    if not child:
        for call in (lambda: client.put("x"), client.get, server.get):
            try:
                call()
            except UsageError:
                continue
            os._exit(1)
        if number % 2:
            try:
                with make("client") as own:
                    own.put("of a child").result()
            except UsageError:
                # The library of gRPC does not work there.
                assert "PROTOCOL" == "grpc"
        if number % 3:
            os._exit(0)
        sys.exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
stop.set()
threads[0].join()
client.put("end").result()
threads[1].join()
assert counts["put"] == counts["got"] > 0, counts
client.close()
server.close()
print("whole")
"""

ENDS = """
server = make("server")
client = make("client")
client.ready()
puts = [client.put(number) for number in range(100)]
server.put("x")
waiting = threading.Thread(target=lambda: [server.get() for _ in range(200)], daemon=True)
waiting.start()
END
"""


def _filled(text: str, protocol: str, netloc: nq.NetworkLocation) -> str:
    begin = HERE.replace("HOST", netloc.host).replace("PORT", str(netloc.port)).replace("PROTOCOL", protocol)
    return begin + text.replace("PROTOCOL", protocol)


def test_forking(protocol: str, netloc: nq.NetworkLocation) -> None:
    """Children of a process whose threads put and get have their own, end either way, and the parent goes on."""
    done = run_program(_filled(FORKS, protocol, netloc), "-W", "ignore::DeprecationWarning")
    assert done.stdout.split() == ["0"] * 6 + ["whole"], done.stderr


# The thread of a dropped communicator is told at once: CPython aborts if it prints that while the interpreter ends.
DROPS = "threading.excepthook = lambda _: None; del client, server"


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(3)", 3), ("1/0", 1), (DROPS, 0)])
def test_ending(protocol: str, netloc: nq.NetworkLocation, end: str, code: int) -> None:
    """A program that closes nothing ends as it meant to, whatever its threads wait for."""
    done = run_program(_filled(ENDS.replace("END", end), protocol, netloc), "-W", "ignore::ResourceWarning")
    assert done.returncode == code, done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Exception in thread" not in done.stderr


@pytest.mark.parametrize("script", ["greet", "volley", "both", "receive"])
def test_an_interrupted_client(yard: Yard, script: str) -> None:
    """Ctrl-C in the midst of a script comes out of whatever it waits in, and the program ends; its server goes on."""
    assert script in SCRIPTS
    server = yard.start("serve").wait_ready()
    client = yard.start(script, count=2000).wait_ready()
    client.wait_lines(3 if script != "receive" else 1)
    client.interrupt()
    assert client.ended() in ([], ["KeyboardInterrupt"])
    assert yard.start("finish").ended() == []
    assert server.ended() == []


@pytest.mark.parametrize("script", ["serve", "collect"])
def test_an_interrupted_server(yard: Yard, script: str) -> None:
    """Ctrl-C in its get comes out, it ends, and its clients are told."""
    server = yard.start(script).wait_ready()
    client = yard.start("receive", id=uuid4())
    client.wait_ready()
    server.interrupt()
    assert server.ended() == ["KeyboardInterrupt"]
    server_again = yard.start("serve").wait_ready()
    client.kill()
    assert yard.start("finish").ended() == []
    assert server_again.ended() == []
