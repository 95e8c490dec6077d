"""The targets and their corpus, as far as a commit may wait for them; `nox -s fuzz` runs many more inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import run_plainly
from tests.fuzz.catalogue import CORPUS, NAMES, load
from tests.fuzz.seeds import GIVEN, REGRESSION, seeds
from tests.fuzz.watch import Watch

#: So many inputs of each target, from this seed: always the same.
RUNS = dict.fromkeys(NAMES, 1_000) | {"certificates": 150}
SEED = 20_261_122


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus(name: str) -> None:
    """Each input in the repository keeps its target's invariant, those that once broke it too."""
    target = load(name)
    for each, data in target.corpus.items():
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz {name} {CORPUS / name / each}") from error


@pytest.mark.parametrize("name", NAMES)
def test_inputs_near_the_corpus(name: str, tmp_path: Path) -> None:
    """So do a thousand that are made out of these."""
    print(f"python -m tests.fuzz {name} --plain --runs {RUNS[name]} --seed {SEED}")
    target = load(name)
    watch = Watch(name, target.run, tmp_path)
    run_plainly(watch, target, list(target.corpus.values()), SEED, RUNS[name])
    assert watch.count == RUNS[name]


def test_the_corpus_is_what_its_program_makes() -> None:
    """The inputs in the repository are those of seeds.py, what was given, and what was found."""
    made = seeds()
    assert set(made) == set(NAMES)
    for name in NAMES:
        corpus = load(name).corpus
        assert made[name] == {
            each: data for each, data in corpus.items() if not each.startswith((REGRESSION, GIVEN))
        }, f"{name}: run python -m tests.fuzz.seeds"


def test_the_corpus_is_small() -> None:
    """It has fewer than 250 files and less than 100 KB, none of them twice."""
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) < 250
    assert sum(path.stat().st_size for path in files) < 100_000
    assert {path.parent.name for path in files} == set(NAMES)
    for name in NAMES:
        corpus = load(name).corpus
        assert len(set(corpus.values())) == len(corpus), name


def test_targets_state_their_invariant() -> None:
    """Each module of a target is in the catalogue, and the first line of its target says what holds."""
    modules = {path.stem for path in Path(__file__).parent.joinpath("targets").glob("*.py")}
    assert modules == set(NAMES)
    for name in NAMES:
        target = load(name)
        line, *_ = (target.run.__doc__ or "").splitlines()
        assert line.endswith("."), name
        assert target.words, name
