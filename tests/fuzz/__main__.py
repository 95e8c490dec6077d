"""`python -m tests.fuzz TARGET` looks for inputs that break a target; with files it runs those."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz import guided
from tests.fuzz.catalogue import NAMES, Target, load
from tests.fuzz.mutate import Mutator
from tests.fuzz.watch import InvariantError, LeakError, Watch, end_what_does_not

#: Beside the clone, and not in it for git.
CRASHES = Path(".fuzz")


def main() -> int:
    """Do what the command line says; 1 if an input broke the target."""
    options = _options()
    end_what_does_not()
    crashes = CRASHES / options.target
    if options.files:
        target = load(options.target)
        for path in options.files:
            target.run(path.read_bytes())
            print(f"{path}: it holds")
        return 0
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    with_atheris = guided.available() and not options.plain
    print(f"{options.target}: {'atheris' if with_atheris else 'plain mutation'}, --seed {seed}", flush=True)
    try:
        if with_atheris:
            guided.run(options.target, seed, options.runs, options.seconds, crashes, options.corpus)
        target = load(options.target)
        watch = Watch(options.target, target.run, crashes)
        inputs = [*target.corpus.values(), *_files(options.corpus)]
        run_plainly(watch, target, inputs, seed, options.runs, options.seconds)
        watch.close()
    except (InvariantError, LeakError) as error:
        print(error, file=sys.stderr)
        return 1
    print(watch)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("files", nargs="*", type=Path, help="run these inputs and no others")
    parser.add_argument("--runs", type=int, default=100_000, help="how many inputs (100,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many, whatever was run")
    parser.add_argument("--seed", type=int, help="of all that is drawn; without it another one each time, printed")
    parser.add_argument(
        "--corpus", type=Path, help="a folder with further inputs; atheris adds to it what it finds new"
    )
    parser.add_argument("--plain", action="store_true", help="without atheris, though it is installed")
    return parser.parse_args()


def _files(folder: Path | None) -> Iterable[bytes]:
    return () if folder is None else (path.read_bytes() for path in sorted(folder.iterdir()))


def run_plainly(
    watch: Watch, target: Target, inputs: list[bytes], seed: int, runs: int, seconds: float = float("inf")
) -> None:
    """Run the inputs, then mutations of them.

    Raises:
        InvariantError: One of them broke the target.
    """
    for data in inputs:
        watch(data)
    mutator = Mutator(seed, inputs, target.words)
    while watch.count < runs and watch.seconds < seconds:
        watch(mutator.make())


if __name__ == "__main__":
    sys.exit(main())
