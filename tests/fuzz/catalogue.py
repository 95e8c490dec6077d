"""The targets by name, and the inputs that each begins with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CORPUS", "NAMES", "Target", "load"]

#: Each is a module in targets/.
NAMES = (
    "parser",
    "link",
    "metadata",
    "announcement",
    "address",
    "bytes_data",
    "json_data",
    "msgpack_data",
    "pickle_data",
    "stream_data",
    "certificates",
    "directory",
)

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """What inputs are given to.

    Attributes:
        name: Its name.
        run: Takes an input, and raises if the invariant does not hold that its docstring begins with.
        words: Constants of the format.
    """

    name: str
    run: Callable[[bytes], None]
    words: tuple[bytes, ...]

    @property
    def corpus(self) -> dict[str, bytes]:
        """The inputs in the repository, by name."""
        return {path.name: path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())}


def load(name: str) -> Target:
    """Import a target: only now, since what guides a fuzzer sees what is imported after it."""
    module: Any = importlib.import_module(f"tests.fuzz.targets.{name}")
    return Target(name, module.target, tuple(module.WORDS))
