"""Whether examples keep to themselves: tried out on a batch, not assumed.

A clipped sum bounds what one example contributes only if no other example's gradient depends on it.
No list of modules can tell that of a model and a loss; a trial can. The same examples are run
beside others, in batches of another size and after other batches, with the same random numbers, and
must not notice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.grads.batch import Batch, LossFn, batch_size, copied, rows
from dpvd.grads.clipping import Grouping
from dpvd.grads.engines.loop import true_norms
from dpvd.grads.engines.vmap import vmapped
from dpvd.grads.factored.survey import MOST, survey
from dpvd.grads.isolation.compare import PADDING, NotIsolated, agree, unmoved
from dpvd.grads.isolation.locate import Scene, locate
from dpvd.grads.isolation.randomness import dropout_off, seeded
from dpvd.grads.isolation.runs import UNCLIPPED, CannotTry, Runner, Subject, undisturbed
from dpvd.grads.isolation.trial import OTHER_DRAWS, WAYS, Trial
from dpvd.grads.padding import Padding

__all__ = [
    "Finding",
    "examine",
    "examine_padding",
    "examine_state",
    "look_around",
    "why_not_mapped",
]

ORACLE_ROWS = 4  # rows whose gradients are compared with those of the oracle
# How many times a batch is padded by what it took to put one example beside a longer one: much
# first, in which a weak dependence shows, and less for a model with an end to its positions.
PADDED_BY = (8, 1)


@dataclass(frozen=True)
class Finding:
    """What a trial came to, if it found nothing to refuse.

    Attributes:
        why_not: why gradients must not be taken from one pass over all examples; empty if they may.
        made: whether the trial could be made; False if runs cannot be repeated.
        is_random: whether the model or the loss draws random numbers, dropout apart.
        settled: buffers that change in a forward pass, but in the same way whatever the data.
    """

    why_not: str
    made: bool
    is_random: bool
    settled: frozenset[str]


def examine(subject: Subject, batch: Batch, *, thorough: bool, is_random: bool = False) -> Finding:
    """Try out whether examples keep to themselves, and whether the factored engine is right.

    Guarantees: random streams, buffers, attributes and variables are as before, to the last bit.

    Edge cases: needs two examples or more.

    Args:
        subject: the model and the loss.
        batch: the examples; none of the runs has more of them at once.
        thorough: try everything. A later check of the same model changes one thing about the other
            examples, drawn at random, and takes the oracle's word, and that runs repeat, from the
            first.
        is_random: what was found of the model before; a thorough check finds it anew.

    Raises:
        DpvdError: if the loss of an example depends on other examples, on their number or on
            earlier batches, or a buffer keeps something of the data.
    """
    with undisturbed(subject) as start:
        trial = Trial(subject, batch, start, is_random=is_random)
        made = True
        try:
            if thorough:
                trial.replay()
                for way in WAYS:
                    trial.replace_others(way)
                trial.change_size()
            else:
                trial.change_one_thing()
        except CannotTry as reason:
            made = False
            trial.why_not = f"whether its examples interact cannot be tried out: {reason}"
        if not trial.left:
            trial.run_another()
        settled = trial.compare_state()
        if thorough and not trial.why_not:
            trial.ask_oracle(ORACLE_ROWS)
        return Finding(trial.why_not, made, trial.random, settled)


def look_around(subject: Subject, batch: Batch, micro_batch: int | None) -> None:
    """Find out where the batch is in what the model computes, for the factored engine."""
    most = MOST if micro_batch is None else max(2, micro_batch)
    with undisturbed(subject), seeded(0, subject.device), dropout_off(subject.model):
        survey(subject.model, subject.loss_fn, batch, subject.grouping, most)


def examine_state(subject: Subject, batch: Batch) -> frozenset[str]:
    """Try out whether something of a batch is kept for later.

    Gradients that are formed for each example alone need no more than this.

    Returns:
        Names of the buffers that change without keeping any of the data.

    Raises:
        DpvdError: if a buffer keeps something of the data, or later losses depend on it in another
            way.
    """
    with undisturbed(subject) as start:
        trial = Trial(subject, batch, start, why_not="not asked")
        trial.run_another()
        return trial.compare_state()


def examine_padding(subject: Subject, batch: Batch, padding: Padding) -> str:
    """Try out whether losses change when a batch is padded to a greater length.

    Gradients that are formed for each example alone need this, too: its row is as long as the
    longest of its batch.

    Returns:
        Why it could not be tried out; empty if it was.

    Raises:
        DpvdError: if losses change.
    """
    reason = ""
    with undisturbed(subject) as start:
        runner = Runner(subject, start, seed=0, why_not="not asked")
        base = runner.run(batch, quietly=True, norms=False)
        for times in PADDED_BY:
            padded = padding.on(batch, times)
            try:
                longer = runner.run(padded, quietly=True, norms=False)
            except Exception as error:  # a model may say in any way that this is too long for it
                first_line = (str(error) or type(error).__name__).splitlines()[0]
                reason = f"a run on a longer batch failed ({first_line})"
                continue
            if base.drawn != longer.drawn:
                return OTHER_DRAWS
            if not unmoved(longer.losses, base.losses):
                everyone = torch.arange(batch_size(batch))
                where = locate(runner, Scene(batch, everyone), Scene(padded, everyone))
                raise NotIsolated(PADDING.format(where))
            return ""
    return reason


def why_not_mapped(subject: Subject, batch: Batch) -> str:
    """Why torch.func cannot form the gradients of this model; empty if it can, and is right.

    Where the model is random the draws differ, and there is nothing to compare: each gradient is
    formed alone.
    """
    few = rows(batch, slice(0, ORACLE_ROWS))
    norms = []
    with undisturbed(subject) as start:
        for engine, seed in ((true_norms, 0), (true_norms, 1), (_mapped_norms, 0)):
            start.restore()
            with seeded(seed, subject.device), dropout_off(subject.model):
                copy = copied(few)
                try:
                    norms.append(engine(subject.model, subject.loss_fn, copy, subject.grouping))
                except RuntimeError as error:
                    if engine is true_norms:
                        raise
                    return str(error).split("\n")[0]
    truth, other_seed, ours = norms
    if agree(other_seed, truth) and not agree(ours, truth):
        return "per-example norms differ from those of the oracle"
    return ""


def _mapped_norms(model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> Tensor:
    found = vmapped(model, loss_fn, batch, UNCLIPPED, grouping)
    return found.norms
