"""dp-accounting's own tests of an accountant, run on each of ours."""

# The module, not the class: a class that is named here would be collected by itself.
import pytest
from dp_accounting import ComposedDpEvent, UnsupportedEventError, privacy_accountant_test

from dpvd.privacy import AccountantName, Relation, accountant_for, poisson_event


class TestConformance(privacy_accountant_test.PrivacyAccountantTest):
    """Every accountant under every relation: what it composes, refuses and says of nothing."""

    __unittest_skip__ = False  # as the base class is skipped

    def _make_test_accountants(self):
        return [accountant_for(name, relation) for name in AccountantName for relation in Relation]


def test_a_part_without_a_theorem_is_named():
    sampled = poisson_event(1.0, 0.5, 3)
    accountant = accountant_for(AccountantName.RDP, Relation.REPLACE_ONE)
    event = ComposedDpEvent([poisson_event(1.0, 1.0, 1), sampled])
    problem = accountant._maybe_compose(event, 1, False)
    assert problem.invalid_event == sampled.event
    with pytest.raises(UnsupportedEventError, match="no theorem for Poisson sampling"):
        accountant.compose(event)
    assert accountant.get_epsilon(1e-5) == 0.0  # nothing was added
