"""The faults: what is changed in the package, and the test that has to notice.

Each is a mistake that was made in some implementation of private training, or that is easily made.
Training still runs and learns with all of them; only the guarantee is wrong.

Here are those of a step's sum and noise; those of one package each stand in files of their own.
"""

from tests.faults import (
    account_faults,
    audit_faults,
    clipping_faults,
    contract_faults,
    correlated_faults,
    distributed_faults,
    estimator_faults,
    file_faults,
    isolation_faults,
    mechanisms_faults,
    prediction_set_faults,
    privacy_faults,
    provenance_faults,
    report_faults,
    shared_faults,
    statistics_faults,
    stranger_faults,
    verify_faults,
)
from tests.faults.fault import Fault

__all__ = ["FAULTS"]

STEP, UPDATE, FIT, PLAN = "training/step.py", "training/update.py", "training/fit.py", "plan.py"
NOISE, PER_EXAMPLE = "mechanisms/noise.py", "grads/per_example.py"


FAULTS = [
    Fault(
        "noise half as large",
        NOISE,
        {"GridScale(noise.unit, noise.std, chunk": "GridScale(noise.unit, noise.std / 2, chunk"},
        "tests/mechanisms/test_noise.py::TestReleaseSums::test_adds_noise_of_the_right_scale_to_every_sum",
    ),
    Fault(
        "half of the planned noise asked for",
        STEP,
        {"self.plan.noise_std(": "0.5 * self.plan.noise_std("},
        "tests/training/test_step.py::test_noise_has_the_planned_scale_whatever_the_batch",
    ),
    Fault(
        "noise on each example's gradient before the sum",
        STEP,
        {
            "            self.update.release(noise,": "            from dpvd.mechanisms import release_sums\n"
            "            sums = self.update._sums\n"
            "            for _ in range(batch_size(batch)):\n"
            "                release_sums(sums, noise, self.noise, scales=dict.fromkeys(sums, 1), parameters={})\n"
            "            self.update.release(noise,"
        },
        "tests/training/test_step.py::test_noise_has_the_planned_scale_whatever_the_batch",
    ),
    Fault(
        "noise inside the clip",
        UPDATE,
        {
            "            mean = self._sums[name]\n": "            mean = self._sums[name]\n"
            "            mean.mul_((0.01 / mean.norm()).clamp_max(1.0))\n"
        },
        "tests/training/test_step.py::test_noise_has_the_planned_scale_whatever_the_batch",
    ),
    Fault(
        "noise not scaled with the learning rate",
        UPDATE,
        {"-rate / self.batch_size": "-0.5 / self.batch_size"},
        "tests/training/test_update.py::test_noise_follows_a_schedule_of_learning_rates",
    ),
    Fault(
        "one learning rate for the noise of all groups",
        UPDATE,
        {"-rate / self.batch_size": "-max(rates.values()) / self.batch_size"},
        "tests/training/test_update.py::test_every_group_has_noise_at_its_own_learning_rate",
    ),
    Fault(
        "noise on the weights, and the sum after it",
        UPDATE,
        {
            "        self._add_noise(noise, bits, scales, direct)\n": "        zeros = "
            "{name: torch.zeros_like(total) for name, total in self._sums.items()}\n"
            "        release_sums(zeros, noise, bits, scales=scales, parameters=direct)\n"
            "        for name, parameter in direct.items():\n"
            "            parameter.add_(self._sums[name], alpha=scales[name])\n"
            "            self._sums[name].zero_()\n"
        },
        "tests/training/test_update.py::TestRoundingUndoesNoNoise::"
        "test_a_threshold_is_not_passed_more_often_than_gaussian_noise_allows",
    ),
    Fault(
        "no more noise for what rounding to the grid moves",
        NOISE,
        {"std * (1 + unit * root / sensitivity)": "std"},
        "tests/mechanisms/test_noise.py::TestNoiseOnGrid::test_the_noise_is_that_of_the_sensitivity_after_rounding",
    ),
    Fault(
        "the grid of one tensor for the noise of all",
        STEP,
        {"parameter.numel() for parameter in": "1 for parameter in"},
        "tests/training/test_step.py::test_the_grid_is_fine_enough_for_all_entries_together",
    ),
    Fault(
        "noise not rounded to the grid",
        "native/draws.py",
        {"np.rint(normals * units_per_std)": "normals * units_per_std"},
        "tests/native/test_release.py::TestRelease::test_all_results_are_multiples_of_the_unit",
    ),
    Fault(
        "the sign of a zero tells the sign of the sum",
        "native/draws.py",
        {"(units + noise + 0.0)": "(units + noise)"},
        "tests/native/test_release.py::TestRelease::test_zero_has_one_sign",
    ),
    Fault(
        "a sum without noise left behind",
        STEP,
        {"            self.update.discard()  # no sum without noise stays in memory\n": ""},
        "tests/training/test_step.py::test_an_interrupt_leaves_no_sum_behind_and_the_parameters_as_they_were",
    ),
    Fault(
        "sums of the step before kept",
        UPDATE,
        {"            buffer.zero_()\n": "            pass\n"},
        "tests/training/test_update.py::test_a_step_knows_nothing_of_the_one_before",
    ),
    Fault(
        "division by the realised batch size",
        STEP,
        {
            "            self.update.release(noise,": "            self.update.batch_size = max(1, len(batch.tensors[0]))\n"
            "            self.update.release(noise,"
        },
        "tests/training/test_step.py::test_the_sum_is_divided_by_the_planned_batch_size",
    ),
    Fault(
        "shuffled batches under a Poisson account",
        "batches.py",
        {
            "    for step in steps:\n": "    examples = len(columns)\n    order = []\n    for step in steps:\n",
            "rows = draw_rows(step)": "order[:] = order or "
            "torch.randperm(examples).split(max(1, len(draw_rows(step))))\n        rows = order.pop()",
        },
        "tests/test_plan.py::test_poisson_batches_are_what_the_account_assumes",
    ),
    Fault(
        "KL inside the clip",
        STEP,
        {
            "        self.kl_weight = kl_weight\n": "        self.kl_weight = None\n"
            "        if kl_weight is not None:\n"
            "            from dpvd.nn import kl\n"
            "            plain = loss_fn\n"
            "            loss_fn = lambda m, *rows: plain(m, *rows) + kl_weight(0) * kl(m) / plan.examples\n"
        },
        "tests/training/test_step.py::test_kl_is_added_unclipped_and_after_the_noise",
    ),
    Fault(
        "one weight draw shared by the batch",
        "nn/noise_families.py",
        {
            "        return add_noise_(mean, variance)\n\n    def output_moments(": "        scale = "
            "self.weight_variance().sqrt()\n"
            "        shared = self.mean_weight() + scale * draw(self.weight.shape, x)\n"
            "        return self.linear_map(x, shared, self.bias)\n\n    def output_moments("
        },
        "tests/nn/test_layers.py::test_equal_rows_get_different_noise_and_no_row_sees_another",
    ),
    Fault(
        "one output draw shared by the batch",
        "nn/noise.py",
        {
            "device=device)\n        return noise.to(like.device)": "device=device)\n        return noise.to(like.device)[:1].expand(size)"
        },
        "tests/grads/test_engines.py::test_noise_differs_between_examples",
    ),
    Fault(
        "norms from a part of each row",
        "nn/sum_of_squares.py",
        {"values = rows.detach().numpy()": "values = rows.detach()[:, 1:].contiguous().numpy()"},
        "tests/grads/test_sensitivity.py::test_float32_rounding_does_not_break_the_bound",
    ),
    Fault(
        "per-layer clipping accounted as flat",
        "grads/clipping.py",
        {"            reach *= math.sqrt(groups)\n": "            pass\n"},
        "tests/grads/test_sensitivity.py::test_per_layer_clipping_reaches_beyond_the_flat_bound",
    ),
    Fault(
        "ledger written after release",
        STEP,
        {
            "                self._charge(draw)\n"
            "            self.update.release(noise, self._noise, kl_by_name)\n": ""
            "                pass\n"
            "            self.update.release(noise, self._noise, kl_by_name)\n"
            "            self._charge(draw)\n",
        },
        "tests/training/test_step.py::test_a_step_is_on_disk_before_its_noisy_result_exists",
    ),
    Fault(
        "biases missing from the norm",
        PER_EXAMPLE,
        {
            "        so_far = columns": "        squared_norm = squared_norm * (not name.endswith('bias'))\n"
            "        so_far = columns",
        },
        "tests/grads/test_sensitivity.py::test_float32_rounding_does_not_break_the_bound",
    ),
    Fault(
        "norms believed although a factor's square vanished",
        PER_EXAMPLE,
        {"[losses.abs(), *sizes.values()]": "[losses.abs()]"},
        "tests/grads/test_extremes.py::test_squares_that_vanish_do_not_hide_a_gradient[18-Linear]",
    ),
    Fault(
        "repeated rows of a table taken for as short as their sum",
        "grads/factored/represent.py",
        {"return Norms(rounded_up(total, magnitude, positions), ())": "return Norms(total, ())"},
        "tests/grads/test_extremes.py::test_repeated_rows_that_cancel_do_not_take_the_noise_along[1e+30]",
    ),
    Fault(
        "biases not scaled by the clip factor",
        PER_EXAMPLE,
        {
            "            if total.is_contiguous():\n": "            if name.endswith('bias'):\n"
            "                weights = weights.clamp_min(1.0)\n"
            "            if total.is_contiguous():\n"
        },
        "tests/grads/test_sensitivity.py::test_float32_rounding_does_not_break_the_bound",
    ),
    Fault(
        "a resumed run forgets the charges of lost steps",
        FIT,
        {
            '        self.step.load_state_dict(facts["step"])\n': ""
            '        self.step.load_state_dict(facts["step"])\n'
            "        account = self.step._account\n"
            '        account.entries[account.run]["charged"] = self.step.taken\n'
        },
        "tests/training/test_fit.py::test_a_killed_run_keeps_its_charges_and_never_passes_the_budget",
    ),
    Fault(
        "seeded streams although the system's were planned",
        PLAN,
        {"        return SystemBits()": "        return SeededBits(0, purpose)"},
        "tests/test_plan.py::test_seeded_batches_repeat_and_system_batches_do_not",
    ),
    Fault(
        "a step's noise seeded although the system's was planned",
        STEP,
        {
            'self._noise = plan.bits("noise") if noise is None else noise\n': ""
            'self._noise = SeededBits(0, "noise")\n',
            '            plan.check_source(self._noise, "noise")\n': "",
        },
        "tests/training/test_step.py::test_equal_steps_repeat_their_noise_only_if_it_is_seeded",
    ),
    Fault(
        "noise and batches from one stream",
        PLAN,
        {"return SeededBits(self.seed, purpose)": 'return SeededBits(self.seed, "")'},
        "tests/test_plan.py::test_noise_and_sampling_never_share_a_stream",
    ),
    Fault(
        "noise scaled for add-or-remove under replace-one",
        STEP,
        {"clipping.sensitivity(self.plan.relation,": 'clipping.sensitivity("add-or-remove",'},
        "tests/training/test_step.py::test_noise_has_the_planned_scale_whatever_the_batch",
    ),
    Fault(
        "noise for the planned clipping although another ran",
        STEP,
        {"clipping = self.clipper.clipping": "clipping = self.plan.clipping"},
        "tests/training/test_step.py::test_noise_follows_the_clipping_that_runs_not_the_one_that_was_planned",
    ),
    *account_faults.FAULTS,
    *audit_faults.FAULTS,
    *clipping_faults.FAULTS,
    *contract_faults.FAULTS,
    *correlated_faults.FAULTS,
    *distributed_faults.FAULTS,
    *estimator_faults.FAULTS,
    *file_faults.FAULTS,
    *isolation_faults.FAULTS,
    *mechanisms_faults.FAULTS,
    *prediction_set_faults.FAULTS,
    *privacy_faults.FAULTS,
    *provenance_faults.FAULTS,
    *report_faults.FAULTS,
    *shared_faults.FAULTS,
    *statistics_faults.FAULTS,
    *stranger_faults.FAULTS,
    *verify_faults.FAULTS,
]
