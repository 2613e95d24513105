"""Faults by which something goes unaccounted: foreign batches, forgotten steps, words that claim
too much.
"""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

ACCOUNT, PLAN, STEP, UPDATE = (
    "training/account.py",
    "plan.py",
    "training/step.py",
    "training/update.py",
)
DRAWN, STORE = "mechanisms/drawn.py", "training/account_store.py"
TEST_LOADER = "tests/test_loader.py::"
TEST_PROVENANCE = "tests/training/test_provenance.py::"
TEST_UPDATE = "tests/training/test_update.py::"

NOISE = [
    Fault(
        "no noise on parameters that a batch does not reach",
        UPDATE,
        {
            "        self._add_noise(noise, bits, scales, direct)\n": "        reached = "
            "{name: total for name, total in self._sums.items() if total.any()}\n"
            "        release_sums(reached, noise, bits, scales=scales, parameters=direct)\n"
        },
        TEST_UPDATE + "test_what_a_batch_does_not_reach_has_noise_like_the_rest[0.0]",
    ),
    Fault(
        "the learning rate of the first group for the noise of all",
        UPDATE,
        {'float(group["lr"])': 'float(optimizer.param_groups[0]["lr"])'},
        TEST_UPDATE + "test_every_group_has_noise_at_its_own_learning_rate",
    ),
    Fault(
        "seeded noise under a plan with the system's",
        STEP,
        {'            plan.check_source(self._noise, "noise")\n': ""},
        TEST_PROVENANCE
        + "TestWhatIsBound::test_seeded_noise_under_a_plan_with_system_noise_is_refused",
    ),
    Fault(
        "seeded batches under a plan with the system's",
        PLAN,
        {'            self.check_source(bits, "bits")\n': "            pass\n"},
        TEST_PROVENANCE
        + "TestWhatIsBound::test_seeded_noise_under_a_plan_with_system_noise_is_refused",
    ),
]

BATCHES = [
    Fault(
        "a batch that may be used again",
        STEP,
        {"            draw.used = True\n": "            pass\n"},
        TEST_PROVENANCE + "TestBatches::test_a_batch_is_used_once",
    ),
    Fault(
        "batches in any order",
        DRAWN,
        {"    if draw.step != position:\n": "    if False:\n"},
        TEST_PROVENANCE + "TestBatches::test_batches_come_in_order",
    ),
    Fault(
        "batches of another plan",
        DRAWN,
        {"    if draw.plan != plan:\n": "    if False:\n"},
        TEST_PROVENANCE + "TestBatches::test_a_batch_of_another_plan_is_refused",
    ),
    Fault(
        "tensors of two draws taken for one batch",
        DRAWN,
        {"first if all(mark is first for mark in marks) else None": "first"},
        TEST_PROVENANCE + "TestBatches::test_tensors_of_two_draws_are_refused",
    ),
    Fault(
        "data of another length",
        PLAN,
        {"        if length != self.examples and not near:\n": "        if False:\n"},
        TEST_PROVENANCE + "TestData::test_data_of_another_length_are_refused[8]",
    ),
    Fault(
        "an optimizer with parameters of its own",
        UPDATE,
        {"    if held == trained.keys():\n": "    if True:\n"},
        TEST_PROVENANCE + "TestWhatIsBound::test_an_optimizer_with_other_parameters_is_refused",
    ),
    Fault(
        "every process of a group with the whole budget",
        "ranks.py",
        {"    if size > 1:\n": "    if False:\n"},
        TEST_PROVENANCE + "test_a_process_group_that_begins_later_is_refused_too",
    ),
]

LOADER = [
    Fault(
        "batches of a loader marked as the draw after theirs",
        "loader.py",
        {
            "Draw(self._fingerprint, step, len(drawn)": "Draw(self._fingerprint, step + 1, len(drawn)"
        },
        TEST_LOADER + "TestDraws::test_they_are_those_of_the_plan_in_order[2]",
    ),
    Fault(
        "a seeded pass that begins at the first draw again",
        PLAN,
        {"stream = self._sampling_bits(count, step)": "stream = self._sampling_bits(count, 0)"},
        TEST_LOADER + "TestDraws::test_they_are_those_of_the_plan_in_order[0]",
    ),
    Fault(
        "the same secret draws in every pass",
        PLAN,
        {
            "            for number in itertools.count(step):\n": ""
            "            for number in itertools.count(step):\n"
            "                stream = SeededBits(number % 5, 'sampling')\n"
        },
        TEST_LOADER + "TestDraws::test_secret_draws_are_not_repeated",
    ),
    Fault(
        "a collate function that drops examples",
        DRAWN,
        {
            '    if not lengths or set(lengths) != {draw.size}:\n        raise DpvdError(\n            f"{draw.size}': ""
            '    if not lengths:\n        raise DpvdError(\n            f"{draw.size}'
        },
        TEST_LOADER + "TestCollation::test_a_row_for_each_example",
    ),
    Fault(
        "an example in a batch that was drawn empty",
        "loader.py",
        {"rows(as_batch(one), slice(0, 0))": "rows(as_batch(one), slice(0, 1))"},
        TEST_LOADER + "TestEmptyDraws::test_no_value_of_an_example_is_in_them",
    ),
    Fault(
        "data that grew under a plan",
        PLAN,
        {"            self._check_length(count)\n": ""},
        TEST_LOADER + "TestData::test_data_that_grow_are_refused",
    ),
    Fault(
        "any batch of the right shape taken for the one that was handed out",
        DRAWN,
        {"    both_nan = (there": "    return True\n    both_nan = (there"},
        TEST_LOADER + "TestRecognition::test_other_values_are_not",
    ),
    Fault(
        "a copy of a batch that was written to",
        DRAWN,
        {" or not _is_as_drawn(known.tensors)": ""},
        TEST_LOADER + "TestRecognition::test_a_copy_of_what_was_written_to_is_not",
    ),
    Fault(
        "a tensor that nobody drew among those that were",
        DRAWN,
        {"all(_is_among(known.tensors, tensor) for": "any(_is_among(known.tensors, tensor) for"},
        TEST_LOADER + "TestRecognition::test_other_values_are_not",
    ),
    Fault(
        "constants that change with the batch",
        "grads/clipper.py",
        {"        elif layout != first:\n": "        elif False:\n"},
        "tests/grads/test_batches.py::test_what_is_shared_must_be_constant",
    ),
    Fault(
        "a loader with weights taken over",
        "training/private.py",
        {"    if not takes_all:\n": "    if False:\n"},
        "tests/training/test_private.py::TestRefusals::test_samplers_that_prefer_some_examples",
    ),
]

MEMORY = [
    Fault(
        "a new step object that begins anew",
        STORE,
        {
            "    entries: Entries = vars(model).get(_KEPT, {})\n    merge(entries, entries_of(model))\n": ""
            "    entries: Entries = {}\n"
        },
        TEST_PROVENANCE + "TestAccountOfTheModel::test_the_same_cell_twice_goes_on_counting",
    ),
    Fault(
        "steps that a state dict does not bring along",
        STORE,
        {"        _read_line(self, state_dict)\n": ""},
        TEST_PROVENANCE
        + "TestAccountOfTheModel::test_the_account_travels_with_the_weights[state dict]",
    ),
    Fault(
        "steps that a copy of the model does not know",
        STORE,
        {
            "def shared_entries(": "class _Local(dict):\n"
            "    def __deepcopy__(self, memo):\n"
            "        return _Local()\n\n\n"
            "def shared_entries(",
            "    entries: Entries = vars(model).get(_KEPT, {})\n": "    entries: Entries = vars(model).get("
            "_KEPT, _Local())\n",
        },
        TEST_PROVENANCE + "TestAccountOfTheModel::test_the_account_travels_with_the_weights[copy]",
    ),
    Fault(
        "steps that the parts of a model do not know",
        STORE,
        {"vars(module)[_KEPT] = entries\n": "vars(model)[_KEPT] = entries\n"},
        TEST_PROVENANCE + "TestAccountOfTheModel::test_the_account_travels_with_the_weights[part]",
    ),
    Fault(
        "steps that earlier weights take back",
        STORE,
        {'max(known["charged"], entry["charged"])': 'entry["charged"]'},
        TEST_PROVENANCE + "TestAccountOfTheModel::test_earlier_weights_take_no_step_back",
    ),
    Fault(
        "other plans on the same model left out",
        ACCOUNT,
        {"return self._jointly(own)": "return own"},
        TEST_PROVENANCE + "TestAccountOfTheModel::test_another_plan_on_the_same_model_is_added_up",
    ),
    Fault(
        "a statement for the steps of one object",
        STEP,
        {
            "return self._account.guarantee(delta, accountant, self._noise.description)": ""
            "return self.plan.guarantee(delta, accountant, self._taken).observed(seen=())"
        },
        TEST_PROVENANCE + "TestAccountOfTheModel::test_the_same_cell_twice_goes_on_counting",
    ),
    Fault(
        "a ledger behind its checkpoint",
        STEP,
        {"                self._ledger.charge(behind)\n": "                pass\n"},
        TEST_PROVENANCE + "TestResuming::test_the_larger_count_wins[2-4]",
    ),
    Fault(
        "a checkpoint behind its ledger",
        STEP,
        {"known = 0 if self._ledger is None else self._ledger.charged": "known = 0"},
        TEST_PROVENANCE + "TestResuming::test_the_larger_count_wins[4-2]",
    ),
    Fault(
        "steps paid ahead taken twice after a resume",
        STEP,
        {
            '        self._taken = int(state["taken"])\n': '        self._taken = int(state["taken"])\n'
            "        self._prepaid = self.charged - self._taken\n"
        },
        TEST_PROVENANCE + "TestResuming::test_steps_that_were_paid_ahead_are_not_taken_twice",
    ),
]

WORDS = [
    Fault(
        "changes by other code not noticed",
        ACCOUNT,
        {
            "        return known is not None and known.differ_from(self._model, self._held)\n": "        return False\n"
        },
        TEST_PROVENANCE
        + "TestForeignChanges::test_between_steps_and_after_the_last_they_are_stated",
    ),
    Fault(
        "declared batches said to have been seen",
        STEP,
        {"drawn=draw is not None": "drawn=True"},
        TEST_PROVENANCE + "TestBatches::test_declared_batches_are_stated_as_not_seen",
    ),
    Fault(
        "declared batches said to be covered",
        STEP,
        {
            "            self._account.note_not_covered(\n"
            '                "how batches were drawn, which the caller declared and nobody saw"\n'
            "            )\n": "            pass\n"
        },
        TEST_PROVENANCE + "TestBatches::test_declared_batches_are_stated_as_not_seen",
    ),
    Fault(
        "tuning that nobody spoke of stated as none",
        PLAN,
        {"            tuned=self.tuned,\n": "            tuned=self.tuned or (),\n"},
        TEST_PROVENANCE + "TestWords::test_what_nobody_declared_is_not_nothing",
    ),
    Fault(
        "facts that nobody spoke of left out",
        PLAN,
        {"undeclared=self._undeclared(),": "undeclared=(),"},
        TEST_PROVENANCE + "TestWords::test_what_nobody_declared_is_not_nothing",
    ),
    Fault(
        "noise calibrated for fewer steps than are taken",
        PLAN,
        {"own = self.sampler.event(z, self.steps)": "own = self.sampler.event(z, self.steps // 2)"},
        "tests/test_plan.py::test_calibrate_then_account[rdp]",
    ),
]

FAULTS = [*NOISE, *BATCHES, *LOADER, *MEMORY, *WORDS]
