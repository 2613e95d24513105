"""Faults in the gradients of what examples share: each makes norms too short, or somebody else's."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

SHARED, SURVEY = "grads/factored/shared.py", "grads/factored/survey.py"
LAYOUT = "grads/factored/layout.py"
TESTS = "tests/grads/test_shared.py::"
EQUALS = TESTS + "test_what_examples_share_gets_the_gradients_of_the_loop"
PUBLIC = "tests/grads/test_public_models.py::test_all_parameters_of_a_public_network"

FAULTS = [
    Fault(
        "the gradient of a shared parameter divided by the batch",
        SHARED,
        {"return {root.name: [Direct(grad)]}": "return {root.name: [Direct(grad / self.count)]}"},
        EQUALS + "[Tokens-flat]",
    ),
    Fault(
        "one use of a tied weight forgotten",
        SHARED,
        {"terms.setdefault(name, []).extend(parts)": "terms.setdefault(name, parts)"},
        EQUALS + "[Products-flat]",
    ),
    Fault(
        "only the last way to a root counted",
        SHARED,
        {"own if so_far is None else so_far + own": "own"},
        EQUALS + "[TwoWays-flat]",
    ),
    Fault(
        "a weight in a penalty not looked for",
        "grads/factored/engine.py",
        {"    if names:\n        more = f": "    if False:\n        more = f"},
        TESTS + "test_a_penalty_on_weights_that_the_loss_holds_itself_is_left_to_another_engine",
    ),
    Fault(
        "paths into a layer's inputs not followed",
        SURVEY,
        {
            "        waiting += [(*edge, inside) for edge in node.next_functions]": "        waiting += "
            "[] if inside else [(*edge, inside) for edge in node.next_functions]"
        },
        EQUALS + "[UsedFromOutside-flat]",
    ),
    Fault(
        "a layer's rule kept although others use its weight",
        SURVEY,
        {"        if own & names:\n": "        if False:\n"},
        EQUALS + "[UsedFromOutside-flat]",
    ),
    Fault(
        "flattened examples told apart in the wrong order",
        LAYOUT,
        {
            "    return tensor.reshape(*shape[:dim], count, size // count, *shape[dim + 1 :])": "    "
            "return tensor.reshape(*shape[:dim], size // count, count, *shape[dim + 1 :])"
            ".transpose(dim, dim + 1)"
        },
        TESTS + "test_rows_of_one_example_stand_together",
    ),
    Fault(
        "one example more or less not told from a position",
        LAYOUT,
        {"    if others or not is_proportional:\n": "    if others:\n"},
        TESTS + "test_the_batch_is_what_grows_with_the_examples[few5-more5--1]",
    ),
    Fault(
        "an operation that was never surveyed let through",
        SHARED,
        {
            "        if any(isinstance(value, Tensor) and value.requires_grad for value in found):\n": "  "
            "      if False:\n"
        },
        TESTS + "test_a_parameter_that_appears_in_a_new_place_is_not_forgotten",
    ),
    Fault(
        "reentrant checkpoints not noticed",
        SURVEY,
        {"if _is_hidden(node):\n            raise": "if False:\n            raise"},
        TESTS + "test_reentrant_checkpoints_are_refused_with_a_remedy",
    ),
    Fault(
        "the oracle asked without the engine's dropout masks",
        "grads/isolation/trial.py",
        {
            "self._ask_oracle(few, i, dropout, directions)": "self._ask_oracle(few, i, False, directions)"
        },
        PUBLIC + "[DistilBERT]",
    ),
    Fault(
        "only the norm of all parameters compared with the oracle",
        "grads/isolation/trial.py",
        {
            "        columns = zip(ours.by_parameter[: len(wanted)].unbind(1), truth.unbind(1), strict=True)": "  "
            "      columns = [(ours.by_parameter[: len(wanted)].norm(dim=1), truth.norm(dim=1))]",
            "        elif not aligned(": "        elif False and not aligned(",
        },
        TESTS + "test_rows_of_others_in_a_small_part_of_the_network_are_noticed",
    ),
    Fault(
        "a lookup of padding given a gradient",
        SHARED,
        {"        if padding is not None:\n": "        if False:\n"},
        EQUALS + "[Products-flat]",
    ),
]
