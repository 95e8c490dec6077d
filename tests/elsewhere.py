"""A process without what POSIX alone has, as on Windows: `python -m tests.elsewhere import|talk|command …`.

The names are gone before anything of redpoll is imported. What the interpreter itself needs of them it has by then.
"""

from __future__ import annotations

import asyncio
import importlib
import mmap
import os
import pathlib
import pkgutil
import re
import signal
import socket
import sys
import tempfile
import threading
from functools import partial
from typing import Any, NoReturn

import pytest

for each in ("asyncio.subprocess", "concurrent.futures.thread", "multiprocessing", "shutil", "ssl", "subprocess"):
    importlib.import_module(each)

#: Modules that are not there.
_APART = re.compile(r"__main__|\.compat\.")
MODULES = ("fcntl", "resource", "uvloop", "termios", "tty", "pty", "pwd", "grp", "syslog")

#: Names that are not there, by their modules.
NAMES = {
    os: """fork forkpty register_at_fork getuid geteuid getgid getegid setsid killpg getpgid uname fchmod fchown chown mkfifo
        pread pwrite readv writev sendfile nice""",
    signal: """SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGCHLD SIGALRM SIGSTOP SIGCONT SIGTSTP pthread_kill
        pthread_sigmask sigwait setitimer siginterrupt alarm pause""",
    socket: """AF_UNIX SO_REUSEPORT SO_PEERCRED SCM_RIGHTS MSG_NOSIGNAL MSG_DONTWAIT TCP_INFO TCP_NOTSENT_LOWAT TCP_QUICKACK
        TCP_USER_TIMEOUT TCP_CORK send_fds recv_fds if_nameindex""",
    mmap: " ".join(each for each in vars(mmap) if each.startswith(("MAP_", "MADV_", "PROT_"))),
}

#: What Windows' own event loop has not. It has no remove_reader either, which the one here calls itself.
METHODS = """add_signal_handler remove_signal_handler add_reader add_writer create_unix_connection create_unix_server"""


class Loop(asyncio.SelectorEventLoop):
    """An event loop with what Windows' own has, and no more."""


def unavailable(*_: Any, **__: Any) -> NoReturn:
    """What takes the place of a method."""
    raise NotImplementedError


for method in METHODS.split():
    setattr(Loop, method, unavailable)


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes such loops."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return Loop()


def take_away() -> None:
    """Have all of it gone."""
    # It makes pairs of unix sockets, and would look for the name.
    pair = partial(socket.socketpair, socket.AF_UNIX)
    socket.socketpair = lambda *_: pair()
    for module, names in NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    asyncio.set_event_loop_policy(Policy())


def import_everything() -> int:
    """Import each module of redpoll but those that need another library, and return how many there are."""
    import redpoll

    found = [each.name for each in pkgutil.walk_packages(redpoll.__path__, "redpoll.") if not _APART.search(each.name)]
    for name in found:
        importlib.import_module(name)
    return len(found)


async def talk() -> None:
    """Send, request, and send 40 MB; over TLS too; in this process and between threads."""
    from redpoll import ConfigError, Message, Node, NotSent, Wiring, nq
    from redpoll.blocking import PoolNode, QueueNode

    got: list[int] = []

    def handle(message: Any) -> bytes:
        got.append(len(message.data))
        return b"pong"

    async with Node(handle, port=0) as server, Node() as client:
        await client.send(Message(b"ping", server.address))
        assert (await client.request(Message(b"ping", server.address))).data == b"pong"
        await client.send(Message(bytearray(40_000_000), server.address), timeout=60)
        with pytest.raises(NotSent, match="no unix sockets"):
            await client.send(Message(b"", "unix:/nowhere"), dial="once")
    assert got == [4, 4, 40_000_000]
    with pytest.raises(ConfigError, match="no unix sockets"):
        await Node(handle, host="unix:/nowhere").start()
    with tempfile.TemporaryDirectory() as folder:
        await encrypted(pathlib.Path(folder))
    async with Wiring() as wiring:
        prices = await wiring.create_exchange("PRICES")
        await wiring.create_queue("MINE")
        await wiring.bind("PRICES", "MINE")
        await wiring.send(prices, b"tick")
        assert await wiring.receive() == b"tick"
    await asyncio.to_thread(threads, QueueNode, PoolNode, nq)


async def encrypted(folder: pathlib.Path) -> None:
    """Send over TLS."""
    from redpoll import TLS, Message, Node
    from redpoll.pki import CA

    authority = CA.make()
    ca = authority.save(folder)
    certificate = authority.issue("node", ["127.0.0.1"]).save(folder / "node.pem")
    options: dict[str, Any] = {"tls": TLS(ca=ca, certificate=certificate), "encryption": True}
    async with Node(lambda _: None, port=0, **options) as server, Node(**options) as client:
        await client.send(Message(bytes(1_000_000), server.address))


def threads(queue_node: Any, pool_node: Any, nq: Any) -> None:
    """Do the same without asyncio."""
    from redpoll import Message

    with pool_node(lambda message: message.data, port=0) as server, queue_node() as client:
        assert client.request(Message(b"x", server.address)).result(10).data == b"x"
    with nq.new(purpose="server", options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))) as server:
        with nq.new(purpose="client", options=nq.CommunicatorOptions(netloc=server.netloc)) as client:
            client.put("hello")
            assert server.get(timeout=10).data == "hello"
            server.close(0)
    assert threading.current_thread() is not threading.main_thread()


def main(arguments: list[str]) -> None:
    """Do what is asked for."""
    take_away()
    what, *rest = arguments
    if what == "import":
        print(import_everything())
    elif what == "talk":
        import redpoll

        redpoll.run(talk())
        print("done")
    else:
        from redpoll.cli.entry import main as command

        command(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
