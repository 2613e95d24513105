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
from dpvd.privacy import AccountantName, Guarantee, Relation, fingerprint
from dpvd.statistics import (
    Charge,
    KeptReleases,
    Moments,
    MomentWeights,
    Rows,
    kept_names,
    noise_shares,
    release_mean,
    release_moments,
    release_plan,
)
from dpvd.tabular.checks import count_people, scaled_targets
from dpvd.tabular.linear import LinearSolution, calibrate, solve, whitened_start, whitening
from dpvd.tabular.model import TableModel
from dpvd.tabular.network import TableNetwork
from dpvd.tabular.recipe import TableMethod, TableRecipe, choose
from dpvd.tabular.rows import DerivedRows, rows_by_person
from dpvd.training import (
    Account,
    Recipe,
    accumulated_noise,
    charge_release,
    fit,
    has_begun,
)

__all__ = ["TableFit", "fit_table", "rehearse_table"]

AVERAGED = 0.5  # part of the steps whose iterates are averaged
_CURVATURE = 0.15  # mean of p(1 - p) of a classifier that knows something
_MICRO_BATCH = 8192
_CHECKPOINTS = 10  # on the way through the steps
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
    hats: Tensor | None = None,
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
    resume: bool = False,
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
        hats: bool [features], which of them are hat functions of others; hidden units of a network
            do not see these. None if there are none.
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
        folder: where ledgers, with the releases that they paid for, and checkpoints are kept;
            nothing is written if None.
        resume: go on from what lies in the folder. Releases in it are not made, or paid for, again.

    Raises:
        DpvdError: if arguments do not fit together; nothing is charged or written then.
    """
    if resume and folder is None:
        raise DpvdError("to resume, name the folder of the run")
    examples = count_people(x, unit_index, people, rows_per_person)
    targets = scaled_targets(y, len(x), classes, target_range)
    if groups is not None and groups.shape != (x.shape[1],):
        raise DpvdError(
            f"groups must have one entry for each of the {x.shape[1]} features, got shape "
            f"{list(groups.shape)}"
        )
    plain = _without_hats(hats, x.shape[1])
    if recipe is None:
        recipe = choose(
            examples,
            x.shape[1],
            epsilon,
            delta,
            classes=classes,
            hats=x.shape[1] - len(plain),
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
    model = _model(recipe, x.shape[1], columns, plain, classes, target_range)
    work = _Work(
        model,
        recipe,
        base,
        multipliers,
        unit_index,
        delta,
        AccountantName.parse(accountant),
        None if folder is None else Path(folder),
        resume,
    )
    names = {} if folder is None else kept_names(Path(folder))
    for plan in before.values():
        charge_release(model, plan, names.get(fingerprint(plan.to_dict())))
    guarantee = work.learn(x, targets, groups, rows_per_person or 1)
    model.eval()
    return TableFit(model, guarantee, recipe, before | work.plans)


def rehearse_table(
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    recipe: TableRecipe,
    multipliers: Mapping[str, float],
    groups: Tensor,
    hats: Tensor,
    seed: int = 0,
) -> TableModel:
    """Learn a made-up table by a recipe, with given noise: there is nobody to protect in it.

    Args:
        x: [n, features] made-up rows, encoded.
        y: [n] classes.
        classes: number of classes.
        recipe: how to learn.
        multipliers: noise multiplier of each part of the recipe.
        groups: see `fit_table`.
        hats: see `fit_table`.
        seed: of the noise.
    """
    base = PrivacyPlan(
        examples=len(x), batch_size=len(x), steps=1, noise=NoiseKind.SEEDED, seed=seed
    )
    columns = len(torch.unique(groups))
    plain = _without_hats(hats, x.shape[1])
    model = _model(recipe, x.shape[1], columns, plain, classes, None)
    # δ and the accountant enter a statement that nobody reads: the quickest will do.
    work = _Work(model, recipe, base, dict(multipliers), None, 1e-5, AccountantName.ZCDP, None)
    work.carry_out(x, scaled_targets(y, len(x), classes, None), groups, 1)
    return model.eval()


def _model(
    recipe: TableRecipe,
    features: int,
    columns: int,
    plain: Tensor,
    classes: int | None,
    target_range: tuple[float, float] | None,
) -> TableModel:
    model = TableModel(
        features,
        classes,
        whitened=recipe.method is not TableMethod.STATISTICS,
        constant=recipe.constant * math.sqrt(columns),
        target_range=(-1.0, 1.0) if target_range is None else target_range,
        hidden=recipe.hidden,
        hidden_features=len(plain),
        prior_std=recipe.prior_std or 1.0,  # points have none
        points=recipe.points,
    )
    if recipe.hidden:
        model.seen.copy_(plain)
    return model


def _without_hats(hats: Tensor | None, features: int) -> Tensor:
    """The numbers of the features that are not hat functions."""
    if hats is None:
        return torch.arange(features)
    if hats.dtype != torch.bool or hats.shape != (features,) or bool(hats.all()):
        raise DpvdError(
            f"hats must say of each of the {features} features whether it is a hat function, and"
            f" not all can be; got {hats.dtype} of shape {list(hats.shape)}"
        )
    return torch.arange(features)[~hats]


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
    resume: bool = False

    def __post_init__(self) -> None:
        self.plans: dict[str, PrivacyPlan] = {}
        self.charge: Charge = self._pay
        if self.folder is not None:
            self.charge = KeptReleases(self.folder, self._name, self.resume, self._pay)

    def learn(
        self, x: Tensor, targets: Tensor, groups: Tensor | None, rows_per_person: int
    ) -> Guarantee:
        """Carry out the recipe and return the statement for all of it."""
        self.carry_out(x, targets, groups, rows_per_person)
        last = list(self.plans.values())[-1]
        account = Account(self.model, last, announce=False)
        return account.guarantee(self.delta, self.accountant, last.bits("noise").description)

    def carry_out(
        self, x: Tensor, targets: Tensor, groups: Tensor | None, rows_per_person: int
    ) -> None:
        """Make the releases and take the steps of the recipe."""
        if self.recipe.mean:
            self._centre(x)
        rows = DerivedRows(x, self.model.centred, self.model.width)
        if self.recipe.method is not TableMethod.STATISTICS:
            if self.recipe.second:
                self._whiten(rows, targets)
            self._train(x, targets, rows_per_person)
            if self.recipe.calibration:
                self._measure_residual(x, targets)
        else:
            weights = MomentWeights.from_shares(self.recipe.second, self.recipe.cross)
            moments = self._moments(rows, targets, weights)
            self._take(solve(moments, groups, self.recipe.ridge))
            self._calibrate(x, targets)

    def _centre(self, x: Tensor) -> None:
        """Release the mean row."""
        rows = DerivedRows(x, self.model.of_unit_length, self.model.width)
        plan = self._release("mean", "the mean row", reach=1.0)
        found = release_mean(
            rows, plan, unit_index=self.unit_index, purpose="mean", charge=self.charge
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
            charge=self.charge,
        )

    def _whiten(self, rows: Rows, targets: Tensor) -> None:
        """Take the transform of rows from their moments, and where a network starts."""
        recipe = self.recipe
        model = self.model
        weights = MomentWeights.from_shares(recipe.second, recipe.cross)
        moments = self._moments(rows, targets, weights)
        model.transform.copy_(whitening(moments, recipe.ridge))
        if isinstance(model.head, TableNetwork):
            block = moments.second[model.seen][:, model.seen]
            model.hidden_transform.copy_(whitening(replace(moments, second=block), recipe.ridge))
            start = whitened_start(moments, recipe.ridge, is_regression=model.classes is None)
            model.head.start[:, :-1] = model.unscaled(start).T

    def _take(self, solution: LinearSolution) -> None:
        assert isinstance(self.model.head, nn.Linear)  # statistics alone make no network
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
            charge=self.charge,
        )
        self.model.set_calibration(calibrate(found))

    def _measure_residual(self, x: Tensor, targets: Tensor) -> None:
        """Release the mean squared residual of a regression, each at most 1."""
        outcome = _in_blocks(lambda part: self.model.outcome(self.model.scores(part)), x)
        squares = (targets - outcome[:, None].clamp(-1, 1)).square()
        plan = self._release("calibration", "the mean squared residual", reach=1.0)
        found = release_mean(
            squares, plan, unit_index=self.unit_index, purpose="calibration", charge=self.charge
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
            initial_weights="random" if recipe.hidden else "zeros",
        )
        self.plans["training"] = plan
        numbers = rows_by_person(self.unit_index, len(x), plan.examples, rows_per_person)
        # A step moves the mean of clipped gradients; the rate is for gradients of length 1.
        rate = recipe.learning_rate / recipe.clip_norm
        fit(
            self.model.head,
            (numbers,),
            plan,
            self._optimisation(rate),
            delta=self.delta,
            accountant=self.accountant,
            loss_fn=_loss(self.model, self._inputs(x), targets.float()),
            evaluations=_CHECKPOINTS,
            folder=self.folder,
            resume=self.resume and self.folder is not None and has_begun(self.folder),
            generator=_seeded(plan),
            micro_batch=max(1, _MICRO_BATCH // rows_per_person),
        )
        self._set_posterior(plan, rate)

    def _optimisation(self, rate: float) -> Recipe:
        """How the steps are taken; the prior has seen released numbers alone."""
        recipe = self.recipe
        if recipe.points:
            precision = 1 / recipe.prior_std**2 if recipe.prior_std else 0.0
            return Recipe(rate, weight_decay=precision / self.base.examples, average=AVERAGED)
        return Recipe(rate, kl_weight=1.0 if recipe.hidden else 0.0, average=AVERAGED)

    def _set_posterior(self, plan: PrivacyPlan, rate: float) -> None:
        """Weights have the noise that all steps together left in them, if they are no points."""
        if self.recipe.points:
            return
        curvature = 1.0 if self.model.classes is None else _CURVATURE
        sensitivity = plan.clipping.sensitivity(plan.relation, 1)
        in_gradient = plan.noise_std(sensitivity) / plan.examples
        std = in_gradient * accumulated_noise(
            [rate] * self.recipe.steps,
            averaged=math.ceil(AVERAGED * self.recipe.steps),
            curvature=min(curvature / self.model.features, 1 / rate),
        )
        if isinstance(self.model.head, TableNetwork):
            self.model.head.set_posterior(std)
        else:
            self.model.head_std.fill_(std)

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

    def _name(self, plan: PrivacyPlan) -> str:
        return next(name for name, known in self.plans.items() if known == plan)

    def _pay(self, plan: PrivacyPlan, name: str | None = None) -> None:
        charge_release(self.model, plan, name)


def _seeded(plan: PrivacyPlan) -> torch.Generator | None:
    """Where a network samples its weights from; seeded if everything else is, as it hides nothing.

    A source of its own, so that it tells nothing of the noise.
    """
    return None if plan.seed is None else torch.Generator().manual_seed(plan.seed)


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
