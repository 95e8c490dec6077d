"""Two network namespaces with one cable between them: two machines, as far as an address can tell."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.interop.raw import BOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = """\
The tests over two network namespaces make and remove them with `ip netns`, which takes root (CAP_SYS_ADMIN and
CAP_NET_ADMIN) and Debian's iproute2: run them as root, in a container with --privileged or these capabilities.
"""

#: Of these tests' own: in a namespace there is nothing else that could have them.
_ADDRESSES = ("10.29.98.1", "10.29.98.2")
_numbers = itertools.count()


@dataclass(frozen=True)
class Namespace:
    """One of two machines that are connected.

    Attributes:
        name: As `ip netns` has it.
        host: Its address on the cable.
    """

    name: str
    host: str

    @property
    def within(self) -> list[str]:
        """What stands before a command that is to run there."""
        return ["ip", "netns", "exec", self.name]


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=BOUND)
    if done.returncode:
        pytest.fail(f"{NEEDED}`ip {' '.join(arguments)}` says: {done.stderr.strip()}", pytrace=False)


@contextlib.contextmanager
def two_namespaces() -> Iterator[tuple[Namespace, Namespace]]:
    """Make them, with addresses at which each reaches the other; both are gone at the end, and the cable with them."""
    if shutil.which("ip") is None:
        pytest.fail(NEEDED, pytrace=False)
    # Of this process alone, so that two runs may go on side by side.
    stem = f"redpoll-{os.getpid()}-{next(_numbers)}"
    left, right = (Namespace(f"{stem}-{index}", host) for index, host in enumerate(_ADDRESSES))
    with contextlib.ExitStack() as stack:
        for each in (left, right):
            _ip("netns", "add", each.name)
            stack.callback(_ip, "netns", "delete", each.name)
        # Both ends are made where they belong: this machine's own network never sees them.
        _ip("link", "add", "cable", "netns", left.name, "type", "veth", "peer", "name", "cable", "netns", right.name)
        for each in (left, right):
            _ip("-n", each.name, "address", "add", f"{each.host}/30", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", each.name, "link", "set", device, "up")
        yield left, right
