"""Faults that let one example reach into another's gradient, or into what leaves with the model."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

TESTS = "tests/grads/test_isolation.py::"
CLIPPER, TRIAL = "grads/clipper.py", "grads/isolation/trial.py"

FAULTS = [
    Fault(
        "a loss that changed taken for the one that was tried out",
        CLIPPER,
        {"if grouping is None or grouping is not self._grouping:": "if grouping is None:"},
        "tests/training/test_provenance.py::TestWhatIsFoundLate::"
        "test_a_loss_that_begins_to_mix_is_refused_in_its_next_step",
    ),
    Fault(
        "engine remembered after a batch of one example",
        CLIPPER,
        {
            "            if batch_size(batch) > 1:\n                self._is_due": "            self._chosen = "
            "Engine.FACTORED\n            if True:\n                self._is_due"
        },
        TESTS + "test_a_batch_of_one_example_settles_nothing",
    ),
    Fault(
        "a batch added up again for a slice of it that torch.func cannot take",
        CLIPPER,
        {
            "                self._pass_over(self.engine, str(error), piece)\n"
            "                yield from self.run(piece, ": "                self._pass_over("
            "self.engine, str(error), piece)\n                yield from self.run(part, "
        },
        "tests/grads/test_forms.py::"
        "test_an_engine_that_fails_on_the_way_leaves_all_of_the_batch_to_the_next",
    ),
    Fault(
        "mixing tolerated a hundred times as much",
        "grads/isolation/compare.py",
        {
            "    return within(ours, truth, relative * ": "    return within(ours, truth, 100 * relative * "
        },
        TESTS + "test_the_least_mixing_that_is_noticed[dtype1-1e-12]",
    ),
    Fault(
        "no check when the model is random",
        TRIAL,
        {
            "            self._replace_quietly(replaced, seen)\n": "            return\n",
            "        base = self._quiet_base()\n": "        return\n",
        },
        TESTS
        + "test_a_layer_that_mixes_examples_is_refused[batch statistics behind noise-auto-dtype1]",
    ),
    Fault(
        "the fast engine for a model that could not be checked",
        CLIPPER,
        {
            "        if not finding.why_not:\n": "        if not finding.why_not or not finding.made:\n"
        },
        TESTS + "test_noise_that_cannot_be_replayed_is_left_to_the_safe_engines",
    ),
    Fault(
        "buffers not compared",
        TRIAL,
        {"            for name in own.changed_buffers(others):\n": "            for name in ():\n"},
        TESTS + "test_a_memory_bank_is_refused_by_name_and_left_empty",
    ),
    Fault(
        "attributes not compared",
        TRIAL,
        {
            "            if own.same_as(others):\n": "            if not own.changed_buffers(others):\n"
        },
        TESTS + "test_averages_that_are_kept_are_refused[attribute-auto]",
    ),
    Fault(
        "verdict kept for another loss",
        CLIPPER,
        {"            self._grouping = None  # work everything out anew\n": "            pass\n"},
        TESTS + "test_a_change_is_seen_at_the_next_batch[exchange_function-object]",
    ),
    Fault(
        "number of examples not varied",
        "grads/isolation/examine.py",
        {"                trial.change_size()\n": ""},
        TESTS + "test_a_loss_that_depends_on_the_size_of_the_batch_is_refused[<lambda>0]",
    ),
    Fault(
        "norms not compared",
        TRIAL,
        {
            "            self._compare_norms(self.base, seen)\n": "            return\n",
            "        if ours.by_parameter is None or ours.projections is None:\n": "        if True:\n",
        },
        TESTS
        + "test_gradients_that_mix_where_losses_do_not_are_formed_alone[sorted_and_back-losses_of]",
    ),
    Fault(
        "norms compared, directions not",
        TRIAL,
        {"elif not aligned(": "elif False and not aligned("},
        "tests/grads/test_shared.py::test_rows_of_others_with_the_same_norm_are_noticed",
    ),
    Fault(
        "no check after the first",
        CLIPPER,
        {"        self._is_due |= _is_due(step or self._batches)\n": ""},
        TESTS + "test_mixing_that_begins_unseen_is_found_by_the_next_check",
    ),
    Fault(
        "sensitivity worked out once although a layer is unfrozen later",
        "grads/isolation/watch.py",
        {" or (now is not None and now.requires_grad is not train)": ""},
        TESTS + "test_the_sensitivity_follows_a_layer_that_is_unfrozen",
    ),
    Fault(
        "padding that nobody tries",
        "training/step.py",
        {"padding = None if draw is None else draw.padding": "padding = None"},
        "tests/grads/test_padding.py::test_a_model_that_looks_at_padding_is_refused[vmap]",
    ),
    Fault(
        "a batch that is padded by nothing",
        "grads/padding.py",
        {
            "before = tuple(times * more for more in self.before)": "times = 0\n"
            "        before = tuple(times * more for more in self.before)"
        },
        "tests/grads/test_padding.py::test_a_model_that_looks_at_padding_is_refused[checked]",
    ),
]
