"""A long run is flat, exact and does not drift; ``make long-haul`` takes 100,000 steps."""

from dataclasses import replace

import pytest
from tools.long_haul import Haul, haul, problems

GOOD = Haul(1000, 1.0, [10 << 20] * 10, 1.0, 1.0, 1000, [1.0, 1.0])


def test_a_short_haul_is_flat_and_exact(tmp_path):
    found = haul(300, tmp_path)
    assert problems(found) == []
    assert found.charged == 300
    assert len(found.memory) == 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory": [10 << 20] * 9 + [20 << 20]}, "memory grew by 10.0 MB"),
        ({"epsilon": 0.999}, "is 0.999, and the plan's is 1.0"),
        ({"charged": 999}, "999 steps were charged, 1000 taken"),
        ({"ratios": [1.0, 0.8]}, "the noise of the second half has 0.800"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(changes, said):
    assert problems(GOOD) == []
    (problem,) = problems(replace(GOOD, **changes))
    assert said in problem
