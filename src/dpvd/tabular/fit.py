"""From an encoded table to a model and the statement for everything that touched the table."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, LossFn
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, Ledger, Relation
from dpvd.statistics import (
    Moments,
    MomentWeights,
    Rows,
    noise_shares,
    release_mean,
    release_moments,
    release_plan,
)
from dpvd.tabular.checks import count_people, scaled_targets
from dpvd.tabular.linear import LinearSolution, calibrate, solve, whitening
from dpvd.tabular.model import TableModel
from dpvd.tabular.recipe import TableMethod, TableRecipe, choose
from dpvd.tabular.rows import DerivedRows, rows_by_person
from dpvd.training import Account, Recipe, charge_release, fit

__all__ = ["TableFit", "fit_table"]

AVERAGED = 0.5  # part of the steps whose iterates are averaged
_CURVATURE = 0.15  # mean of p(1 - p) of a classifier that knows something
_MICRO_BATCH = 8192
_KEPT_BYTES = 256 * 2**20
_EQUAL = MomentWeights.from_shares(second=1 / 2, cross=1 / 2)
_WITH_SQUARES = MomentWeights.from_shares(second=1 / 3, cross=1 / 3, square=1 / 3)


@dataclass(frozen=True)
class TableFit:
    """What `fit_table` gives back.

    Attributes:
        model: in eval mode.
        guarantee: for everything that touched the table.
        recipe: how it was learnt.
        plans: by name, what was done to the data, in order; each was charged in full.
    """

    model: TableModel
    guarantee: Guarantee
    recipe: TableRecipe
    plans: dict[str, PrivacyPlan]


def fit_table(
    x: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    epsilon: float,
    delta: float,
    target_range: tuple[float, float] | None = None,
    groups: Tensor | None = None,
    unit_index: Tensor | None = None,
    people: int | None = None,
    rows_per_person: int | None = None,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
    accountant: AccountantName | str = AccountantName.PLD,
    noise: NoiseKind | str = NoiseKind.SYSTEM,
    seed: int | None = None,
    unit: str = "example",
    tuned: Sequence[str] | str | None = None,
    public: Sequence[str] | str | None = None,
    recipe: TableRecipe | None = None,
    earlier: Mapping[str, PrivacyPlan] | None = None,
    folder: Path | str | None = None,
) -> TableFit:
    """Learn a table under a budget.

    Guarantees:
        The table is read by noisy releases and private steps alone, each charged to the model, and
        to a ledger if there is a folder, before its result is used. The statement is the composed
        account of all of them. One person's rows count together as one example.

    Args:
        x: [n, features] encoded rows, of any length: they are scaled to length 1.
        y: [n] classes, int64 from 0, or numbers.
        classes: number of classes; None for regression.
        epsilon: the budget.
        delta: δ.
        target_range: public bounds of the target, regression; values outside are moved to them.
        groups: int64 [features], which column of the table a feature comes from.
        unit_index: int64 [n], whose row each is; None if every row is a person of its own.
        people: their number, which is public; needed with ``unit_index``.
        rows_per_person: the most rows that one person has; needed with ``unit_index``.
        relation: which tables count as neighbours.
        accountant: who adds up.
        noise: where randomness comes from; ``seeded`` needs ``seed``.
        seed: of seeded noise.
        unit: what one example is, in words.
        tuned: what was chosen by looking at the data, in words.
        public: facts about the data that are public, in words.
        recipe: how to learn; chosen by `choose` if None.
        earlier: by name, releases that were made of the same people before, such as private bounds,
            and charged to ledgers of their own. They are part of the budget and of the statement.
        folder: where ledgers are kept; nothing is written if None.

    Raises:
        DpvdError: if arguments do not fit together; nothing is charged or written then.
    """
    examples = count_people(x, unit_index, people, rows_per_person)
    targets = scaled_targets(y, len(x), classes, target_range)
    if groups is not None and groups.shape != (x.shape[1],):
        raise DpvdError(
            f"groups must have one entry for each of the {x.shape[1]} features, got shape "
            f"{list(groups.shape)}"
        )
    if recipe is None:
        recipe = choose(
            examples,
            x.shape[1],
            epsilon,
            delta,
            classes=classes,
            accountant=accountant,
            relation=relation,
        )
    base = PrivacyPlan(
        examples=examples,
        batch_size=examples,
        steps=1,
        relation=Relation.parse(relation),
        noise=NoiseKind(noise),
        seed=seed,
        unit=unit,
        tuned=tuned,  # type: ignore[arg-type]  # the plan takes lists and single texts
        public=public,  # type: ignore[arg-type]
        initial_weights="zeros",
    )
    columns = x.shape[1] if groups is None else len(torch.unique(groups))
    before = dict(earlier or {})
    multipliers = noise_shares(
        epsilon,
        delta,
        recipe.parts(),
        accountant=accountant,
        relation=relation,
        earlier=[plan.event() for plan in before.values()],
    )
    model = TableModel(
        x.shape[1],
        classes,
        whitened=recipe.method is TableMethod.STEPS,
        constant=recipe.constant * math.sqrt(columns),
        target_range=(-1.0, 1.0) if target_range is None else target_range,
    )
    work = _Work(
        model,
        recipe,
        base,
        multipliers,
        unit_index,
        delta,
        AccountantName.parse(accountant),
        None if folder is None else Path(folder),
    )
    for plan in before.values():
        charge_release(model, plan)
    guarantee = work.learn(x, targets, groups, rows_per_person or 1)
    model.eval()
    return TableFit(model, guarantee, recipe, before | work.plans)


@dataclass
class _Work:
    """One table on its way through the releases and steps of a recipe."""

    model: TableModel
    recipe: TableRecipe
    base: PrivacyPlan
    multipliers: dict[str, float]
    unit_index: Tensor | None
    delta: float
    accountant: AccountantName
    folder: Path | None

    def __post_init__(self) -> None:
        self.plans: dict[str, PrivacyPlan] = {}

    def learn(
        self, x: Tensor, targets: Tensor, groups: Tensor | None, rows_per_person: int
    ) -> Guarantee:
        """Carry out the recipe and return the statement for all of it."""
        self._centre(x)
        rows = DerivedRows(x, self.model.centred, self.model.width)
        if self.recipe.method is TableMethod.STEPS:
            moments = self._moments(rows, targets, MomentWeights(cross=0.0))
            self.model.transform.copy_(whitening(moments, self.recipe.ridge))
            self._train(x, targets, rows_per_person)
            if self.recipe.calibration:
                self._measure_residual(x, targets)
        else:
            weights = MomentWeights.from_shares(self.recipe.second, self.recipe.cross)
            moments = self._moments(rows, targets, weights)
            self._take(solve(moments, groups, self.recipe.ridge))
            self._calibrate(x, targets)
        last = list(self.plans.values())[-1]
        account = Account(self.model, last, announce=False)
        return account.guarantee(self.delta, self.accountant, last.bits("noise").description)

    def _centre(self, x: Tensor) -> None:
        """Release the mean row."""
        rows = DerivedRows(x, self.model.of_unit_length, self.model.width)
        plan = self._release("mean", "the mean row", reach=1.0)
        found = release_mean(
            rows, plan, unit_index=self.unit_index, purpose="mean", charge=self._charge
        )
        self.model.mean.copy_(found.mean)

    def _moments(self, rows: Rows, targets: Tensor, weights: MomentWeights) -> Moments:
        """Release the moments of centred rows."""
        plan = self._release("moments", "second moments", reach=weights.reach)
        return release_moments(
            rows,
            targets,
            plan,
            weights=weights,
            unit_index=self.unit_index,
            purpose="moments",
            charge=self._charge,
        )

    def _take(self, solution: LinearSolution) -> None:
        with torch.no_grad():
            self.model.head.weight.copy_(solution.weights.T)
        self.model.head_std.copy_(solution.std)
        self.model.bound.fill_(1.0)

    def _calibrate(self, x: Tensor, targets: Tensor) -> None:
        """Release how the scores of a solution relate to the targets."""
        scores = _in_blocks(self.model.scores, x)
        rows = torch.cat([scores, torch.ones_like(scores[:, :1])], dim=1) / math.sqrt(2)
        weights = _WITH_SQUARES if self.model.classes is None else _EQUAL
        plan = self._release("calibration", "moments of the scores", reach=weights.reach)
        found = release_moments(
            rows,
            targets,
            plan,
            weights=weights,
            unit_index=self.unit_index,
            purpose="calibration",
            charge=self._charge,
        )
        self.model.set_calibration(calibrate(found))

    def _measure_residual(self, x: Tensor, targets: Tensor) -> None:
        """Release the mean squared residual of a regression, each at most 1."""
        outcome = _in_blocks(lambda part: self.model.outcome(self.model.scores(part)), x)
        squares = (targets - outcome[:, None].clamp(-1, 1)).square()
        plan = self._release("calibration", "the mean squared residual", reach=1.0)
        found = release_mean(
            squares, plan, unit_index=self.unit_index, purpose="calibration", charge=self._charge
        )
        self.model.residual.fill_(max(found.mean.item(), found.std, 1e-6))

    def _train(self, x: Tensor, targets: Tensor, rows_per_person: int) -> None:
        """Take the recipe's steps with the head, on rows that were whitened before."""
        recipe = self.recipe
        plan = replace(
            self.base,
            steps=recipe.steps,
            noise_multiplier=self.multipliers["training"],
            clipping=Clipping(ClippingMode.FLAT, recipe.clip_norm),
        )
        self.plans["training"] = plan
        numbers = rows_by_person(self.unit_index, len(x), plan.examples, rows_per_person)
        # A step moves the mean of clipped gradients; the rate is for gradients of length 1.
        rate = recipe.learning_rate / recipe.clip_norm
        fit(
            self.model.head,
            (numbers,),
            plan,
            Recipe(rate, average=AVERAGED),
            delta=self.delta,
            accountant=self.accountant,
            loss_fn=_loss(self.model, self._inputs(x), targets.float()),
            evaluations=1,
            folder=self.folder,
            micro_batch=max(1, _MICRO_BATCH // rows_per_person),
        )
        curvature = 1.0 if self.model.classes is None else _CURVATURE
        sensitivity = plan.clipping.sensitivity(plan.relation, 1)
        per_step = rate * plan.noise_std(sensitivity) / plan.examples
        contraction = max(0.0, 1 - rate * curvature / self.model.features)
        self.model.head_std.fill_(per_step * averaged_noise(recipe.steps, contraction))

    def _inputs(self, x: Tensor) -> Tensor | DerivedRows:
        """What the head takes, kept if it is small and made anew in every step otherwise."""
        rows = DerivedRows(x, self.model.inputs, self.model.head.in_features)
        if 4 * math.prod(rows.shape) <= _KEPT_BYTES:
            return _in_blocks(self.model.inputs, x)
        return rows

    def _release(self, name: str, words: str, reach: float) -> PrivacyPlan:
        plan = release_plan(
            self.base, name=words, noise_multiplier=self.multipliers[name], reach=reach
        )
        self.plans[name] = plan
        return plan

    def _charge(self, plan: PrivacyPlan) -> None:
        """Pay for a release, on disk first if there is a folder."""
        if self.folder is not None:
            name = next(name for name, known in self.plans.items() if known == plan)
            self.folder.mkdir(parents=True, exist_ok=True)
            ledger = Ledger.create(self.folder / f"ledger-{name}.jsonl", plan.to_dict())
            ledger.charge(1)
            ledger.close()
        charge_release(self.model, plan)


def averaged_noise(steps: int, contraction: float) -> float:
    """Standard deviation of the mean of the last half of w_t = c w_(t-1) + ξ_t, ξ_t of variance 1.

    >>> round(averaged_noise(2, 0.0), 3), round(averaged_noise(1, 1.0), 3)
    (1.0, 1.0)
    """
    last = math.ceil(AVERAGED * steps)
    variance = 0.0
    for born in range(steps):
        # What a draw of noise is worth in the iterates that are averaged.
        ages = range(max(0, steps - last - born), steps - born)
        variance += (sum(contraction**age for age in ages) / last) ** 2
    return math.sqrt(variance)


def _loss(model: TableModel, inputs: Tensor | DerivedRows, targets: Tensor) -> LossFn:
    """The mean loss of a person's rows, which are found by their numbers.

    Args:
        model: whose codes and gain are used.
        inputs: [n, d], what the head takes.
        targets: [n, k].
    """
    by_rows = _squared_errors if model.classes is None else _cross_entropies(model)

    def loss(head: nn.Module, numbers: Tensor) -> Tensor:
        there = (numbers >= 0).float()  # [B, r]
        known = numbers.clamp_min(0)
        losses = by_rows(head(inputs[known]), targets[known])  # [B, r]
        votes = there / there.sum(1, keepdim=True).clamp_min(1.0)
        mean: Tensor = (losses * votes).sum(1)
        return mean

    return loss


def _cross_entropies(model: TableModel) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy of scores [B, r, k]; targets are the codes of the classes, likewise."""
    codes = model.codes.clone()
    gain = model.gain.item()

    def losses(scores: Tensor, targets: Tensor) -> Tensor:
        logits = gain * (scores @ codes.T)  # [B, r, classes]
        classes = (targets @ codes.T).argmax(-1)  # [B, r]
        return F.cross_entropy(logits.transpose(1, 2), classes, reduction="none")

    return losses


def _squared_errors(scores: Tensor, targets: Tensor) -> Tensor:
    """Half the squared errors [B, r]; clipping makes them Huber's loss."""
    return (scores - targets).squeeze(-1).square() / 2


def _in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(x, _MICRO_BATCH)])
