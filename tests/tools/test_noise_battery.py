"""The battery passes our noise, and would not pass what is wrong in one respect."""

import numpy as np
import pytest
from tools.noise_battery import ALARM, Battery, least

from dpvd.mechanisms import SystemBits, standard_normal

DRAWS = 500_000  # of each stream


@pytest.fixture(scope="module")
def streams():
    return [standard_normal(DRAWS, SystemBits()).double().numpy() for _ in range(2)]


def p_values(first, second):
    battery = Battery()
    battery.add(first, second)
    return battery.p_values()


def test_our_noise_passes(streams):
    found = p_values(*streams)
    assert least(found) > ALARM, found
    assert len(found) == 17


def repeated(stream, lag):
    """Draws that are correlated at this lag by 0.02, and standard normal."""
    mixed = stream.copy()
    mixed[lag:] = np.sqrt(1 - 0.02**2) * stream[lag:] + 0.02 * stream[:-lag]
    return mixed


WRONG = {
    "moment 1": lambda first, second: (first + 0.01, second + 0.01),
    "moment 2": lambda first, second: (1.01 * first, 1.01 * second),
    "moment 3": lambda first, second: (np.where(first > 0, 1.02 * first, first), second),
    "moment 4": lambda first, second: (np.sign(first) * np.abs(first) ** 1.02, second),
    "beyond 4 deviations": lambda first, second: (first.clip(-4, 4), second.clip(-4, 4)),
    "Kolmogorov and Smirnov": lambda first, second: (np.rint(8 * first) / 8, second),
    "Anderson and Darling": lambda first, second: (np.rint(8 * first) / 8, second),
    "correlation at lag 1": lambda first, second: (repeated(first, 1), repeated(second, 1)),
    "correlation at lag 7": lambda first, second: (repeated(first, 7), repeated(second, 7)),
    "correlation of the streams": lambda first, second: (first, 0.02 * first + second),
    "squares of the streams": lambda first, second: (first, np.copysign(first, second)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_by_the_test_for_it(name, streams):
    found = p_values(*WRONG[name](*streams))
    assert found[name] * len(found) < ALARM, found


def test_p_values_of_sound_draws_are_not_too_small():
    """Of 400 small batteries, each test has about a tenth of its p-values below a tenth."""
    rng = np.random.default_rng(1)
    found = [p_values(*rng.normal(size=(2, 2000))) for _ in range(400)]
    for name in found[0]:
        below = sum(each[name] < 0.1 for each in found)
        assert below < 400 * 0.1 + 6 * 6, (name, below)
