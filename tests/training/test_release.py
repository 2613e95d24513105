"""Releases in the account of a model."""

import pytest
from torch import nn

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.training import charge_release
from dpvd.training.account import Account


def release(**changes) -> PrivacyPlan:
    arguments = {"examples": 50, "batch_size": 50, "steps": 1, "noise_multiplier": 4.0} | changes
    return PrivacyPlan(**arguments)


def test_a_release_is_charged_once_and_refused_after_that():
    model = nn.Linear(3, 2)
    charge_release(model, release())
    with pytest.raises(DpvdError, match="charged to the model before"):
        charge_release(model, release())
    assert Account(model, release(), announce=False).charged == 1


def test_releases_and_steps_are_added_up():
    model = nn.Linear(3, 2)
    charge_release(model, release())
    charge_release(model, release(noise_multiplier=5.0))
    plan = release(steps=7, noise_multiplier=9.0)
    account = Account(model, plan)
    account.charge(7)
    found = account.guarantee(1e-5, "pld", "noise")
    assert found.steps == 9
    assert found.epsilon > plan.epsilon(1e-5)


@pytest.mark.parametrize("wrong", [{"steps": 2}, {"batch_size": 49}])
def test_only_one_step_on_all_examples_is_a_release(wrong):
    with pytest.raises(DpvdError, match="all examples once"):
        charge_release(nn.Linear(3, 2), release(**wrong))
