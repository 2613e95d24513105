"""Privacy accounting: what an event costs, what noise a budget requires, what may be claimed.

Knows nothing of models or tensors. All noise multipliers are the standard deviation of the noise
divided by the L2 sensitivity *under the relation in force*.
"""

from dpvd.privacy.accountants import accountant_for
from dpvd.privacy.calibration import epsilon, epsilon_curve, noise_multiplier_for, steps_for
from dpvd.privacy.cost import Cost, composed_cost, whole_budget
from dpvd.privacy.data_account import DataAccount, Drawn
from dpvd.privacy.enums import AccountantName, Relation, SamplingKind
from dpvd.privacy.events import count_steps, cyclic_event, fixed_size_event, poisson_event
from dpvd.privacy.group import group_epsilon, group_event
from dpvd.privacy.guarantee import Guarantee, round_down, round_up
from dpvd.privacy.interpretation import Interpretation, gaussian_dp, interpret, privacy_curve
from dpvd.privacy.ledger import Ledger, fingerprint
from dpvd.privacy.schedule import (
    cyclic_in_words,
    fixed_size_in_words,
    poisson_in_words,
    sampled_event,
    sampling_in_words,
    sampling_rate,
    steps_in,
)
from dpvd.privacy.second_opinion import second_opinion

__all__ = [
    "AccountantName",
    "Cost",
    "DataAccount",
    "Drawn",
    "Guarantee",
    "Interpretation",
    "Ledger",
    "Relation",
    "SamplingKind",
    "accountant_for",
    "composed_cost",
    "count_steps",
    "cyclic_event",
    "cyclic_in_words",
    "epsilon",
    "epsilon_curve",
    "fingerprint",
    "fixed_size_event",
    "fixed_size_in_words",
    "gaussian_dp",
    "group_epsilon",
    "group_event",
    "interpret",
    "noise_multiplier_for",
    "poisson_event",
    "poisson_in_words",
    "privacy_curve",
    "round_down",
    "round_up",
    "sampled_event",
    "sampling_in_words",
    "sampling_rate",
    "second_opinion",
    "steps_for",
    "steps_in",
    "whole_budget",
]
