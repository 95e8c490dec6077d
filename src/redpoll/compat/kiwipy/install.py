"""The stand-in for `kiwipy.rmq` in programs that are not changed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import kiwipy

from redpoll.compat.kiwipy import threads

__all__ = ["install"]

#: Modules of `kiwipy.rmq`, by the module that has their names here.
_MODULES: Final = {
    "": "redpoll.compat.kiwipy",
    ".communicator": "redpoll.compat.kiwipy.communicator",
    ".defaults": "redpoll.compat.kiwipy.defaults",
    ".tasks": "redpoll.compat.kiwipy.tasks",
    ".threadcomms": "redpoll.compat.kiwipy.threads",
}


def install() -> None:
    """Put this package in the place of `kiwipy.rmq`, and its `connect`, for any URL, in the place of `kiwipy.connect`.

    Call it before the program imports `kiwipy.rmq`. It holds for this process, and cannot be undone.
    """
    for name, ours in _MODULES.items():
        sys.modules[f"kiwipy.rmq{name}"] = import_module(ours)
    kiwipy.rmq = sys.modules["kiwipy.rmq"]
    kiwipy.connect = threads.connect
