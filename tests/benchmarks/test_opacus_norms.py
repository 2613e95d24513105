"""The comparison of norms with Opacus: our side of it, against the oracle, and the measure of
difference.
"""

import pytest
from benchmarks.norm_cases import CASES, loss
from benchmarks.opacus_norms import AGREED, difference, our_norms

from dpvd.grads import Clipping, clipped_grad


@pytest.mark.parametrize("name", CASES)
def test_our_norms_are_those_of_the_oracle(name: str) -> None:
    case = CASES[name]
    oracle = clipped_grad(
        case.model(), loss, case.inputs(), clipping=Clipping("flat"), engine="loop"
    )
    assert difference(our_norms(case), oracle.norms[:, 0].tolist()) < AGREED


def test_one_example_that_differs_is_enough() -> None:
    assert difference([1.0, 2.0, 3.0], [1.0, 2.5, 3.0]) == pytest.approx(0.2)
