"""Faults that break a contract between the parts of a step (the table in ARCHITECTURE.md)."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

CLIPPING, REPRESENT = "grads/clipping.py", "grads/factored/represent.py"
TESTS = "tests/grads/test_contracts.py::"
FORMS, HALF = "tests/grads/test_forms.py::", "tests/grads/test_half_precision.py::"

FAULTS = [
    Fault(
        "a term that is a parameter itself",
        "grads/factored/rules/dense.py",
        {
            "Outer(rows(u), rows(x.square()), derivative)": ""
            "Outer(rows(2 * layer.log_rate.exp() * u), rows(x.square()), layer.mean_weight().detach())"
        },
        TESTS + "test_no_term_shares_memory_with_a_parameter[type B per layer-cross entropy]",
    ),
    Fault(
        "micro-batches that move the weights one after the other",
        "training/update.py",
        {
            "        clipped.add_to(self._sums)\n": "        clipped.add_to(self._sums)\n"
            "        for name, parameter in self._parameters.items():\n"
            "            parameter.data.add_(self._sums[name], alpha=-1e-3)\n"
        },
        "tests/training/test_update.py::test_parameters_change_only_when_the_sums_are_released[0.0]",
    ),
    Fault(
        "a representation that does not report the sizes of its factors",
        REPRESENT,
        {"return Norms(unscaled[0], (*lefts, *rights))": "return Norms(unscaled[0], ())"},
        TESTS + "test_norms_come_with_the_sizes_of_all_that_is_multiplied[RankOne]",
    ),
    Fault(
        "scales left in the units of the weights",
        CLIPPING,
        {"return noisy_sum.mul_(self[name])": "return noisy_sum"},
        TESTS + "test_divided_before_the_clip_is_multiplied_after_it[additive per weight-factored]",
    ),
    Fault(
        "scales clipped in units of their own by one engine",
        "grads/engines/vmap.py",
        {"Materialised(divided)": "Materialised(values)"},
        TESTS + "test_divided_before_the_clip_is_multiplied_after_it[additive per weight-vmap]",
    ),
    Fault(
        "the model looked at again in the middle of a step",
        "grads/clipper.py",
        {"if grouping is None or grouping is not self._grouping:": "if True:"},
        "tests/training/test_step.py::test_a_step_looks_at_the_modules_once",
    ),
    Fault(
        "inner products of two halves counted once",
        "grads/per_example.py",
        {"return square + 2 * rectangle + rest": "return square + rectangle + rest"},
        FORMS
        + "test_norms_and_sums_are_those_of_the_gradients[dense, many positions-gram-1048576]",
    ),
    Fault(
        "gradients that are formed twice, by two kernels, and measured as if their bits were equal",
        REPRESENT,
        {"return Norms((length + error).square(), sizes)": "return Norms(length.square(), sizes)"},
        "tests/grads/test_rounding.py::test_a_gradient_that_cancels_is_not_taken_for_none",
    ),
    Fault(
        "a convolution's sum of gradients that were not clipped",
        REPRESENT,
        {"in_full(term.x[part]), own)": "in_full(term.x[part]), torch.ones_like(own))"},
        FORMS + "test_norms_and_sums_are_those_of_the_gradients[convolution-formed-1048576]",
    ),
    Fault(
        "norms in half precision",
        "grads/factored/rule.py",
        {"        return values.float()\n": "        return values\n"},
        HALF + "test_norms_bound_what_is_added_up[rank one-0-1048576]",
    ),
    Fault(
        "gradients kept beyond the allowance",
        "grads/per_example.py",
        {"if nbytes > self.room:": "if False:"},
        FORMS + "test_one_allowance_is_for_all_parameters",
    ),
]
