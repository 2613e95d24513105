"""Faults that break a contract between the parts of a step (the table in ARCHITECTURE.md)."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

CLIPPING, REPRESENT = "grads/clipping.py", "grads/factored/represent.py"
TESTS = "tests/grads/test_contracts.py::"

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
]
