"""Faults of the account: steps that are not counted, formulas that promise too much, ledgers that
forget.
"""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

BOUNDS, EVENTS, LEDGER = "privacy/bounds.py", "privacy/events.py", "privacy/ledger.py"
CHAIN = "privacy/chain.py"
TEST_ACCOUNTANTS = "tests/privacy/test_accountants.py::"
TEST_CALIBRATION = "tests/privacy/test_calibration.py::"
TEST_EVENTS = "tests/privacy/test_events.py::"
TEST_GOLDEN = "tests/privacy/test_golden.py::"
TEST_GROUP = "tests/privacy/test_group.py::"
TEST_INTERPRETATION = "tests/privacy/test_interpretation.py::"
TEST_LEDGER = "tests/privacy/test_ledger.py::"

COUNTING = [
    Fault(
        "a repeated event counted once",
        EVENTS,
        {"times * event.count": "times"},
        TEST_EVENTS + "test_events_become_counted_steps",
    ),
    Fault(
        "the count around a repeated event dropped",
        EVENTS,
        {"times * event.count": "event.count"},
        TEST_EVENTS + "test_events_become_counted_steps",
    ),
    Fault(
        "the count around a composition dropped",
        EVENTS,
        {"yield from leaves(part, times)": "yield from leaves(part)"},
        TEST_ACCOUNTANTS + "test_counts_are_multiplied_once_however_the_event_is_nested[rdp]",
    ),
    Fault(
        "of steps of two kinds only the last counted",
        EVENTS,
        {
            "for part in event.events:\n            yield": "for part in event.events[-1:]:\n            yield"
        },
        TEST_ACCOUNTANTS + "test_steps_of_different_kinds_add_up[rdp]",
    ),
]

FORMULAS = [
    Fault(
        "delta ignored in the conversion of Renyi divergences",
        BOUNDS,
        {"np.log(delta * orders)": "np.log(orders)"},
        TEST_GOLDEN + "test_zcdp_conversion[0.1-2.24597-1.91424]",
    ),
    Fault(
        "a logarithm missing in the conversion of Renyi divergences",
        BOUNDS,
        {"np.log(delta * orders)": "delta * orders"},
        TEST_GOLDEN + "test_zcdp_conversion[0.1-2.24597-1.91424]",
    ),
    Fault(
        "concentrated privacy under sampling without its truncation",
        "privacy/accountants.py",
        {"rdp_to_epsilon(orders, rho[last] * orders, delta)": "zcdp_to_epsilon(rho[last], delta)"},
        TEST_GOLDEN + "test_plain_zcdp_would_under_report_and_ours_does_not[0.6-2.67]",
    ),
    Fault(
        "advanced composition without its square root",
        BOUNDS,
        {"    return deviation + drift": "    return drift"},
        TEST_GOLDEN + "test_advanced_composition_of_pure_mechanisms[0.1-100-1e-05-5.85024]",
    ),
    Fault(
        "the lower end of a bracket around epsilon",
        BOUNDS,
        {
            "return np.where(at_zero <= log_delta, 0.0, high)": "return np.where(at_zero <= log_delta, 0.0, low)"
        },
        TEST_ACCOUNTANTS + "test_analytic_gaussian_is_never_below_its_own_delta",
    ),
    Fault(
        "epsilon printed rounded down",
        "privacy/guarantee.py",
        {"_round(epsilon, ROUND_CEILING, digits)": "_round(epsilon, ROUND_FLOOR, digits)"},
        "tests/privacy/test_guarantee.py::test_a_private_run",
    ),
    Fault(
        "calibration ends on the unsafe side",
        "privacy/bisect.py",
        {"    return good\n": "    return bad\n"},
        TEST_CALIBRATION + "test_the_search_finds_the_edge_of_a_step_function[3.0]",
    ),
    Fault(
        "calibration a little over the budget",
        "privacy/bisect.py",
        {"if amount <= budget:": "if amount <= 1.01 * budget:"},
        TEST_CALIBRATION + "test_the_search_for_whole_numbers_is_exact[1001]",
    ),
]

RELATIONS = [
    Fault(
        "pairs of add-or-remove for the profile of replace-one",
        "privacy/pld.py",
        {"    if relation is Relation.REPLACE_ONE:  # pairs": "    if False:  # pairs"},
        TEST_ACCOUNTANTS
        + "test_poisson_under_replace_one_matches_an_independent_account[1.0-0.1-60-1e-05-0.0004]",
    ),
    Fault(
        "the profile of Poisson sampling for subsets of a fixed size",
        "privacy/pld.py",
        {"profile = fixed_size_profile if": "profile = replace_profile if"},
        TEST_ACCOUNTANTS
        + "test_no_accountant_falls_below_an_independent_account[1.0-0.1-60-1e-05-0.0004]",
    ),
    Fault(
        "a theorem for add-or-remove taken for replace-one",
        "privacy/accountants.py",
        {"SamplingKind.POISSON: _ADD_OR_REMOVE,": "SamplingKind.POISSON: _EITHER,"},
        TEST_ACCOUNTANTS + "test_what_has_no_theorem_is_refused_by_name[rdp-poisson-replace-one]",
    ),
    Fault(
        "the sensitivity of add-or-remove for replace-one",
        "grads/clipping.py",
        {"Relation.REPLACE_ONE: 2.0": "Relation.REPLACE_ONE: 1.0"},
        "tests/grads/test_sensitivity.py::test_sensitivity_follows_from_the_clipping_in_force[flat-2-2.0]",
    ),
]

LEDGERS = [
    Fault(
        "a charge not synchronised to disk",
        CHAIN,
        {"    os.fsync(file.fileno())\n": ""},
        TEST_LEDGER + "test_a_charge_is_synchronised_to_disk_before_it_returns",
    ),
    Fault(
        "a ledger charged without its lock",
        LEDGER,
        {"fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)": "pass"},
        "tests/training/test_provenance.py::test_a_forked_child_cannot_charge_under_its_parents_lock",
    ),
    Fault(
        "a complete last line taken for a torn one",
        LEDGER,
        {"elif number > 1:": "elif 1 < number < len(lines):"},
        TEST_LEDGER + "test_charges_add_up_and_survive",
    ),
    Fault(
        "a ledger believed although a line is lost",
        LEDGER,
        {"    if total != before + steps:\n": "    if False:\n"},
        TEST_LEDGER + "test_totals_of_a_ledger_without_a_chain_are_checked",
    ),
    Fault(
        "a ledger believed although its chain is broken",
        CHAIN,
        {'    if entry.get("hash") != _hash(entry, chain):\n': '    if "hash" not in entry:\n'},
        TEST_LEDGER + "test_every_byte_is_in_the_chain",
    ),
    Fault(
        "a chain that does not include the lines before",
        CHAIN,
        {"    digest = chain.copy()\n": "    digest = hashlib.sha256()\n"},
        TEST_LEDGER + "test_damage_that_no_crash_explains_is_an_error",
    ),
    Fault(
        "starts of charging that cannot be told apart",
        LEDGER,
        {"secrets.token_hex(16)": '"0" * 32'},
        TEST_LEDGER + "test_two_copies_that_are_both_charged_differ_from_their_starts_on",
    ),
    Fault(
        "a second writer not noticed",
        LEDGER,
        {
            "if os.fstat(file.fileno()).st_size != self._size or not self._is_in_place(file):": "if False:"
        },
        TEST_LEDGER + "test_a_second_writer_is_noticed",
    ),
    Fault(
        "a ledger resumed under another plan",
        LEDGER,
        {"if plan is not None and canonical(plan) != contents.plan_json:": "if False:"},
        TEST_LEDGER + "test_another_plan_is_refused",
    ),
]

READING = [
    Fault(
        "detection bounded without its delta",
        "privacy/interpretation.py",
        {"* false_positive_rate + self.deltas": "* false_positive_rate"},
        TEST_INTERPRETATION
        + "test_detection_is_bounded_from_above_and_closely[20.0-1-add-or-remove]",
    ),
    Fault(
        "a belief bounded by epsilon, as if delta bounded the probability of more",
        "privacy/interpretation.py",
        {" - np.log1p(-shares)": ""},
        TEST_INTERPRETATION + "test_beliefs_are_bounded_but_with_probability_delta[20.0-1-0.5]",
    ),
    Fault(
        "a group sampled as rarely as one row",
        "privacy/group.py",
        {"missing: float = (1 - sampling_prob) ** rows": "missing: float = 1 - sampling_prob"},
        TEST_GROUP
        + "test_one_step_is_never_below_the_mixture_of_all_ways_to_be_sampled[1.5-0.02-2]",
    ),
    Fault(
        "the deltas along a chain of neighbours not added up",
        "privacy/group.py",
        {"log_delta + _log_sum(one, rows) <= math.log(delta)": "log_delta <= math.log(delta)"},
        TEST_GROUP + "test_the_smaller_bound_is_never_below_the_exact_cost_of_full_batches[10]",
    ),
]

FAULTS = [*COUNTING, *FORMULAS, *RELATIONS, *LEDGERS, *READING]
