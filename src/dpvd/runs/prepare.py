"""From options to all that a run will do: network, plan and recipe."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from dp_accounting import ComposedDpEvent, DpEvent

from dpvd.data import Dataset
from dpvd.errors import DpvdError
from dpvd.features import FeatureKind, FeatureSpec
from dpvd.grads import Clipping
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.options import RunOptions
from dpvd.runs.prediction_sets import Calibration, keep_for_calibration, planned_release
from dpvd.runs.recipes import (
    CHOSEN_ON,
    NETWORKS,
    FeatureChoice,
    NetworkKind,
    NetworkRule,
    RecipeName,
    default_batch_size,
    default_clipping,
    default_steps,
    ordinary_recipe,
    posterior_factor,
    private_recipe,
)
from dpvd.settings import Part
from dpvd.training import Posterior, Recipe

__all__ = ["PreparedRun", "prepare_run"]


@dataclass(frozen=True)
class PreparedRun:
    """All that a run will do, decided before anything is written or trained.

    Attributes:
        not_covered: what of the data was read off it without noise.
        checksum_key: of the data's checksum; None for public data, whose checksum has none.
        class_names: what predictions call the classes; they are numbered if there are none.
        source: file of the data; None for a data set that comes with the program.
        kept: examples for prediction sets, which are not part of ``dataset``, if there are any.
    """

    options: RunOptions
    dataset: Dataset
    network: NetworkSpec
    plan: PrivacyPlan
    recipe: Recipe
    not_covered: tuple[str, ...] = ()
    checksum_key: bytes | None = None
    class_names: tuple[str, ...] = ()
    source: Path | None = None
    kept: Calibration | None = None

    def event(self) -> DpEvent:
        """Everything that the run will do to the data."""
        if self.kept is None:
            return self.plan.event()
        return ComposedDpEvent([self.kept.plan.event(), self.plan.event()])


def prepare_run(
    options: RunOptions,
    dataset: Dataset,
    *,
    not_covered: tuple[str, ...] = (),
    checksum_key: bytes | None = None,
    class_names: tuple[str, ...] = (),
    source: Path | None = None,
) -> PreparedRun:
    """Fill in the default recipe and calibrate the noise.

    Args:
        options: what the user chose.
        dataset: what is trained and tested on.
        not_covered: see `PreparedRun`.
        checksum_key: see `PreparedRun`.
        class_names: see `PreparedRun`.
        source: see `PreparedRun`.

    Raises:
        DpvdError: if the options contradict each other or the data.
    """
    if options.private_bounds is not None:
        raise DpvdError("private_bounds can be given for tables only: images have known bounds")
    kept: Calibration | None = None
    data = dataset
    if options.prediction_sets is None:
        network = _network(options, data)
        plan = _calibrated(options, _plan(options, data, network.rule))
    else:
        data, x, y = keep_for_calibration(dataset, options.prediction_sets, checksum_key)
        network = _network(options, data)
        plan = _plan(options, data, network.rule)
        kept = Calibration(x, y, _release_for_sets(options, plan, len(y)))
        kept.check()
        plan = _calibrated(options, plan, kept.plan)
    recipe = _recipe(options, plan, network.rule)
    return PreparedRun(
        options, data, network, plan, recipe, not_covered, checksum_key, class_names, source, kept
    )


def _network(options: RunOptions, dataset: Dataset) -> NetworkSpec:
    name, front = _settled(options, dataset)
    kind = NETWORKS[name]
    features = math.prod(dataset.feature_shape)
    scale = Scale.NONE
    if options.method is Method.DPVD:
        scale = options.scale or Scale.PRIVACY
    return NetworkSpec(
        features,
        kind.HIDDEN if options.hidden is None else options.hidden,
        dataset.classes,
        scale,
        input_norm=kind.input_norm(features),
        centred=dataset.pixels and front is None,
        kind=name,
        image=dataset.feature_shape if kind.TAKES_IMAGES and dataset.pixels else None,
        front=front,
    )


def _settled(options: RunOptions, dataset: Dataset) -> tuple[NetworkKind, FeatureSpec | None]:
    """The network and its features: what was chosen, and what the shape of the images suggests."""
    features = options.features
    network = options.network
    if options.recipe is RecipeName.PAPER:
        features = FeatureChoice.NONE
    if network is NetworkKind.AUTO and options.hidden is not None:
        network = NetworkKind.MLP
    if network is NetworkKind.LINEAR and options.hidden is not None:
        raise DpvdError("a linear network has no hidden units: choose --network mlp for them")
    is_chosen = features not in (FeatureChoice.AUTO, FeatureChoice.NONE)
    can_have = network in (NetworkKind.AUTO, NetworkKind.LINEAR)
    if is_chosen and not can_have:
        raise DpvdError(f"--features {features} goes with a linear network, not with {network}")
    if is_chosen and dataset.image is None:
        raise DpvdError(
            f"--features {features} are made of images, which {dataset.name} does not hold: use"
            " --features none"
        )
    front = None
    if is_chosen and dataset.image is not None:
        front = FeatureSpec(dataset.image, FeatureKind(features))
    elif features is FeatureChoice.AUTO and can_have and dataset.image is not None:
        front = FeatureSpec(dataset.image) if FeatureSpec.fits(dataset.image) else None
    if network is NetworkKind.AUTO:
        network = NetworkKind.MLP if front is None else NetworkKind.LINEAR
    return network, front


def _plan(options: RunOptions, dataset: Dataset, rule: NetworkRule) -> PrivacyPlan:
    """The plan before its noise: the rule's, with what the user chose in its place."""
    examples = len(dataset.train_x)
    private = options.method is not Method.NONE
    batch_size = options.batch_size
    if batch_size is None:
        batch_size = default_batch_size(examples, private=private, rule=rule)
    steps = 0  # set by the epochs
    if options.epochs is None:
        steps = default_steps(examples, batch_size, rule, private=private)
    is_built_in = dataset.name in CHOSEN_ON
    plan = PrivacyPlan(
        examples=examples,
        batch_size=batch_size,
        steps=steps,
        epochs=options.epochs,
        clipping=_clipping(options),
        noise=NoiseKind.SEEDED if options.seeded_noise else NoiseKind.SYSTEM,
        seed=options.seed if options.seeded_noise else None,
        unit="image" if dataset.pixels else "example",
        tuned=("the constants of the default recipe",) if is_built_in else None,
        public=("the classes", "the size of the images") if is_built_in else None,
        initial_weights="random",
    )
    return replace(plan, **options.given_for(Part.PLAN))


def _release_for_sets(options: RunOptions, plan: PrivacyPlan, examples: int) -> PrivacyPlan:
    assert options.epsilon is not None  # checked at construction
    assert options.prediction_sets is not None
    return planned_release(
        plan,
        examples,
        options.prediction_sets,
        epsilon=options.epsilon,
        delta=options.delta,
        accountant=options.accountant,
    )


def _calibrated(
    options: RunOptions, plan: PrivacyPlan, beside: PrivacyPlan | None = None
) -> PrivacyPlan:
    """The plan with the noise that the budget asks for, less what is released beside it."""
    if options.method is Method.NONE:
        return plan.calibrate(math.inf, options.delta)
    assert options.epsilon is not None  # checked at construction
    events = [] if beside is None else [beside.event()]
    return plan.calibrate(options.epsilon, options.delta, options.accountant, beside=events)


def _clipping(options: RunOptions) -> Clipping:
    clipping = default_clipping()
    mode = clipping.mode if options.clipping is None else options.clipping
    clip_norm = clipping.clip_norm if options.clip_norm is None else options.clip_norm
    if options.clip_quantile is None:
        return Clipping(mode, clip_norm)
    return Clipping(mode, clip_norm, quantile=options.clip_quantile)


def _recipe(options: RunOptions, plan: PrivacyPlan, rule: NetworkRule) -> Recipe:
    """The rule's recipe, with what the user chose in its place."""
    is_private = options.method is not Method.NONE
    recipe = private_recipe(plan, rule) if is_private else ordinary_recipe(rule)
    if options.method is Method.SVI:
        recipe = replace(recipe, weight_decay=1 / plan.examples)  # a standard normal prior
    if options.scale is Scale.LEARNED:
        recipe = replace(recipe, posterior=Posterior.LEARNED)
    recipe = replace(recipe, **options.given_for(Part.RECIPE))
    if recipe.posterior is Posterior.ACCUMULATED:
        recipe = replace(recipe, posterior_factor=posterior_factor(plan, recipe, rule))
    return recipe
