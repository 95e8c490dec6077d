"""What becomes of tests that are marked as failing now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import flaky

# Each starts a few processes.
pytestmark = pytest.mark.timeout(180)

#: Other plugins would take longer to import than the tests take.
OPTIONS = (
    *(word for name in ("redpoll", "cacheprovider", "hypothesispytest", "anyio") for word in ("-p", f"no:{name}")),
    *("-p", "tests.flaky"),
)

#: Fails in the first process that runs it.
ONCE = """
import pytest
from pathlib import Path

@pytest.mark.flaky(reason="the moon", until="2999-12-31")
@pytest.mark.parametrize("number", range({count}))
def test_now_and_then(number):
    marks = Path(__file__).parent / f"tried-{{number}}"
    tried = marks.exists()
    marks.touch()
    assert tried
"""


@pytest.fixture(autouse=True)
def _tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(flaky.__file__).parents[1]))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_passes_alone(pytester: pytest.Pytester, workers: str) -> None:
    """A marked test that fails is run again alone, and the run is green and names it."""
    pytester.makepyfile(test_it=ONCE.format(count=1))
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["FLAKY test_it.py::test_now_and_then?0? - passed alone; known: the moon"])


def test_fails_alone(pytester: pytest.Pytester) -> None:
    """A marked test that fails again fails the run, with what it said."""
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.flaky(reason="the moon", until="2999-12-31")
        def test_never():
            assert 1 == 2
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "FLAKY test_it.py::test_never - failed; known: the moon"])


def test_four_are_too_many(pytester: pytest.Pytester) -> None:
    """More than three that had to be run again fail the run, though each would pass alone."""
    pytester.makepyfile(test_it=ONCE.format(count=4))
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["4 flaky tests failed: more than 3 fail the run"])


def test_out_of_date(pytester: pytest.Pytester) -> None:
    """A mark whose day has passed fails its test."""
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.flaky(reason="the moon", until="2001-01-01")
        def test_passes():
            pass
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*flaky until 2001-01-01 (the moon): mend the test*"])


def test_a_mark_says_why_and_until_when(pytester: pytest.Pytester) -> None:
    """A mark without a reason or a day ends the run before it begins."""
    marks = ["", '"the moon"', 'reason="the moon"', 'until="2999-01-01"', 'reason="the moon", until="soon"']
    tests = [f"@pytest.mark.flaky({mark})\ndef test_{number}():\n    pass\n" for number, mark in enumerate(marks)]
    pytester.makepyfile(test_it="import pytest\n\n" + "\n".join(tests))
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = "\n".join([*result.outlines, *result.errlines])
    assert all(f"test_it.py::test_{number}: " in told for number in range(len(marks)))


@pytest.mark.parametrize(
    "place", ["wire/test_link.py", "promise/test_promise.py", "wiring/test_model.py", "x/model/y.py"]
)
def test_what_is_never_run_again(place: str) -> None:
    """Tests of the protocol, of the promise and of models may not be marked."""
    assert flaky.is_never_run_again(flaky.TESTS / place)
    assert not flaky.is_never_run_again(flaky.TESTS / "node" / "test_faults.py")


def test_a_mark_in_a_model_ends_the_run(pytester: pytest.Pytester) -> None:
    """A mark where there may be none ends the run before it begins."""
    mark = '@pytest.mark.flaky(reason="the moon", until="2999-12-31")'
    pytester.makepyfile(test_model=f"import pytest\n\n{mark}\ndef test_it():\n    pass\n")
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any("never run again" in line for line in [*result.outlines, *result.errlines])
