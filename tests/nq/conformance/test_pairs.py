"""Which combinations of parameters are run."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.nq.conformance.pairs import all_pairs

PARAMETERS = {"protocol": ["tcp", "grpc", "mqtt"], "security": ["plain", "tls"], "facade": ["threads", "aio"]}


@pytest.mark.parametrize("name", ["test_one", "test_two", "test_three"])
def test_each_two_values_meet(name: str) -> None:
    """Every two values of two parameters are in a chosen case, and not all cases are chosen."""
    cases = [dict(zip(PARAMETERS, values, strict=True)) for values in product(*PARAMETERS.values())]
    chosen = [cases[at] for at in all_pairs(cases, name)]
    assert len(chosen) <= 8
    assert all_pairs(cases, name) == all_pairs(cases, name)
    for one, other in combinations(PARAMETERS, 2):
        pairs = {(case[one], case[other]) for case in chosen}
        assert pairs == set(product(PARAMETERS[one], PARAMETERS[other]))


def test_nothing_is_left_out_of_one_parameter() -> None:
    """Each value of one parameter is chosen, and a case without parameters too."""
    assert all_pairs([{"protocol": name} for name in PARAMETERS["protocol"]], "test") == [0, 1, 2]
    assert all_pairs([{}], "test") == [0]
    assert all_pairs([], "test") == []
