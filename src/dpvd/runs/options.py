"""What a user may choose for a run, checked before anything else happens.

A new option is one field of ``RunOptions``: type, default, help and check stand together, and the
command line makes its flag from them. A field that belongs to the plan or the recipe takes effect
by its name; any other is used in ``dpvd.runs.prepare``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from dpvd.errors import (
    Choice,
    DpvdError,
    OptionalChoice,
    in_unit_interval,
    non_negative,
    phrase,
    phrases,
    positive,
    positive_int,
)
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName, Relation, SamplingKind
from dpvd.runs.network import Method, Scale
from dpvd.runs.recipes import (
    KL_WEIGHT,
    ORDINARY_BATCH,
    PRIVATE_BATCH,
    Cnn,
    FeatureChoice,
    Linear,
    Mlp,
    NetworkKind,
    RecipeName,
)
from dpvd.settings import DELTA, RELATION, SAMPLING, Group, Part, Setting, check, settings_of
from dpvd.training import Decay, OptimizerKind, Posterior

__all__ = ["RunOptions"]

NOTHING = "nothing"
SEEDS = 2**63  # what torch's generators take

_MOST_KEPT = 0.5  # of the examples, for prediction sets

# What stays finite and above zero in 32-bit arithmetic, with some room.
LEAST = 1e-30
MOST = 1e30


def _moderate(**named: float) -> None:
    """Raise unless every named value is a positive number that arithmetic can bear."""
    positive(**named)
    for name, value in named.items():
        if not LEAST <= value <= MOST:
            raise DpvdError(f"{name} must lie between {LEAST:g} and {MOST:g}, got {value!r}")


def _seed(**named: int) -> None:
    for name, value in named.items():
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not 0 <= value < SEEDS:
            raise DpvdError(f"{name} must be an integer from 0 to {SEEDS - 1}, got {value!r}")


def _words(**named: str) -> None:
    for name, value in named.items():
        phrase(value, name)


def _entries(**named: list[str]) -> None:
    for name, value in named.items():
        phrases(value, name)


def _declared(entries: list[str] | tuple[str, ...] | str | None, name: str) -> list[str] | None:
    """Entries of a statement; the word "nothing" says that there are none."""
    if entries is None:
        return None
    words = list(phrases(entries, name))
    return [] if words == [NOTHING] else words


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose; None leaves the choice to the default recipe.

    Names may be given as text: ``RunOptions(delta=1e-5, epsilon=1.0, method="dpsgd")``.

    Raises:
        DpvdError: if a value is out of range, or the choices contradict each other.
    """

    delta: Annotated[float, DELTA]
    epsilon: Annotated[
        float | None,
        Setting("ε to spend. Required unless --method none.", Group.PRIVACY, positive),
    ] = None
    accountant: Annotated[
        Choice[AccountantName],
        Setting(
            "How the steps' privacy loss is added up; moments is another name of rdp.",
            Group.PRIVACY,
        ),
    ] = Choice(AccountantName.PLD, parse=AccountantName.parse)
    relation: Annotated[Choice[Relation], RELATION] = Choice(Relation.ADD_OR_REMOVE)
    sampling: Annotated[Choice[SamplingKind], SAMPLING] = Choice(SamplingKind.POISSON)
    clipping: Annotated[
        OptionalChoice[ClippingMode],
        Setting("How per-example gradients are bounded. Default: automatic.", Group.PRIVACY),
    ] = OptionalChoice(ClippingMode)
    clip_norm: Annotated[
        float | None,
        Setting("Clipping norm C. Default: 1.", Group.PRIVACY, _moderate),
    ] = None
    clip_quantile: Annotated[
        float | None,
        Setting(
            "Share of the gradients that --clipping adaptive leaves unclipped. Default: 0.5.",
            Group.PRIVACY,
            in_unit_interval,
        ),
    ] = None
    bands: Annotated[
        int | None,
        Setting(
            "Correlate the noise over so many steps, on batches from as many parts of the data in"
            " turn; needs --learning-rate. Default: independent noise.",
            Group.PRIVACY,
            positive_int,
            Part.PLAN,
        ),
    ] = None
    unit: Annotated[
        str | None,
        Setting(
            "What one example is, such as patient, for the statement. Default: not declared.",
            Group.PRIVACY,
            _words,
            Part.PLAN,
        ),
    ] = None
    tuned: Annotated[
        list[str] | None,
        Setting(
            "What was chosen by looking at this data, once for each; 'nothing' if nothing was."
            " Default: not declared.",
            Group.PRIVACY,
            _entries,
            Part.PLAN,
        ),
    ] = None
    public: Annotated[
        list[str] | None,
        Setting(
            "A fact about the data that is public, once for each; 'nothing' if there is none."
            " Default: not declared.",
            Group.PRIVACY,
            _entries,
            Part.PLAN,
        ),
    ] = None
    private_bounds: Annotated[
        float | None,
        Setting(
            "Part of --epsilon that estimates the bounds and categories that a table's schema"
            " leaves out. Default: nothing is estimated.",
            Group.PRIVACY,
            positive,
        ),
    ] = None
    prediction_sets: Annotated[
        float | None,
        Setting(
            "Part of the examples, and of the budget, that is kept for predict --coverage; nothing"
            " is trained on these. For images. Default: nothing is kept.",
            Group.PRIVACY,
            in_unit_interval,
        ),
    ] = None
    account: Annotated[
        str | None,
        Setting(
            "File of the account that all runs on this data draw from; dpvd account makes one."
            " Default: none, the run's statement is for the run alone.",
            Group.PRIVACY,
            _words,
        ),
    ] = None
    seeded_noise: Annotated[
        bool,
        Setting(
            "Reproducible noise and sampling: not private against whoever knows the seed.",
            Group.PRIVACY,
        ),
    ] = False
    method: Annotated[
        Choice[Method],
        Setting("dpvd, svi and dpsgd are private; none is not.", Group.TRAINING),
    ] = Choice(Method.DPVD)
    batch_size: Annotated[
        int | None,
        Setting(
            "Expected batch size. Default: set by the recipe, all examples up to "
            f"{Linear.BATCH} (mlp, cnn: {PRIVATE_BATCH}; --method none: {ORDINARY_BATCH}).",
            Group.TRAINING,
            positive_int,
        ),
    ] = None
    epochs: Annotated[
        float | None,
        Setting(
            f"Passes over the data. Default: set by the recipe ({Linear.STEPS}; mlp: 100 on digits,"
            " 10.5 on mnist).",
            Group.TRAINING,
            _moderate,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        Setting(
            "Initial learning rate η₀. Default: set by the recipe, from the noise.",
            Group.TRAINING,
            _moderate,
            Part.RECIPE,
        ),
    ] = None
    optimizer: Annotated[
        OptionalChoice[OptimizerKind],
        Setting(
            "Optimizer; adam-bc corrects Adam for the privacy noise. Any but sgd needs"
            " --learning-rate. Default: sgd.",
            Group.TRAINING,
            part=Part.RECIPE,
        ),
    ] = OptionalChoice(OptimizerKind)
    decay: Annotated[
        OptionalChoice[Decay],
        Setting(
            "How the learning rate falls; power is η₀/t^γ in epoch t. Default: constant for a"
            " linear network, else linear.",
            Group.TRAINING,
            part=Part.RECIPE,
        ),
    ] = OptionalChoice(Decay)
    gamma: Annotated[
        float | None,
        Setting(
            "Exponent γ of --decay power. Default: 1.",
            Group.TRAINING,
            non_negative,
            Part.RECIPE,
        ),
    ] = None
    kl_weight: Annotated[
        float | None,
        Setting(
            f"Factor of the KL term (dpvd). Default: set by the recipe, {KL_WEIGHT:g}.",
            Group.TRAINING,
            non_negative,
            Part.RECIPE,
        ),
    ] = None
    seed: Annotated[
        int,
        Setting(
            "Seed for initial weights and dropout (never for privacy noise).",
            Group.TRAINING,
            _seed,
        ),
    ] = 0
    recipe: Annotated[
        Choice[RecipeName],
        Setting(
            "best: features that need no data and a linear layer, for images; paper: the paper's"
            " network on pixels.",
            Group.NETWORK,
        ),
    ] = Choice(RecipeName.BEST)
    features: Annotated[
        Choice[FeatureChoice],
        Setting(
            "Features of images that need no data: scatter (wavelets), hog (oriented gradients) or"
            " random; auto: scatter, unless --network or --hidden ask for another network.",
            Group.NETWORK,
        ),
    ] = Choice(FeatureChoice.AUTO)
    network: Annotated[
        Choice[NetworkKind],
        Setting(
            "linear: one layer; mlp: one hidden layer; cnn: two convolutions and a hidden layer,"
            " for images; auto: linear on features, mlp for other images, and for tables by their"
            " size and the budget.",
            Group.NETWORK,
        ),
    ] = Choice(NetworkKind.AUTO)
    hidden: Annotated[
        int | None,
        Setting(
            f"Hidden units. Default: {Mlp.HIDDEN} for mlp, {Cnn.HIDDEN} for cnn; 16 for tables.",
            Group.NETWORK,
            positive_int,
        ),
    ] = None
    scale: Annotated[
        OptionalChoice[Scale],
        Setting("Source of the posterior scale ζ (dpvd). Default: privacy.", Group.NETWORK),
    ] = OptionalChoice(Scale)
    posterior: Annotated[
        OptionalChoice[Posterior],
        Setting(
            "Scale of the weights after training (dpvd): last-step, as tied in training;"
            " accumulated, the noise that all steps left; learned, with --scale learned. Default:"
            " last-step, or learned.",
            Group.NETWORK,
            part=Part.RECIPE,
        ),
    ] = OptionalChoice(Posterior)

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "tuned", _declared(self.tuned, "tuned"))
        object.__setattr__(self, "public", _declared(self.public, "public"))
        on_pixels = self.features in (FeatureChoice.AUTO, FeatureChoice.NONE)
        if self.recipe is RecipeName.PAPER and not on_pixels:
            raise DpvdError(f"--recipe paper takes pixels: leave out --features {self.features}")
        is_private = self.method is not Method.NONE
        if is_private and self.epsilon is None:
            raise DpvdError(
                f"method {self.method} needs a privacy budget: give --epsilon, or use --method none"
            )
        if is_private and self.clipping is ClippingMode.NONE:
            raise DpvdError(
                f"--clipping none is for --method none: {self.method} needs bounded gradients"
            )
        if self.gamma is not None and self.decay is not Decay.POWER:
            raise DpvdError(
                "gamma is the exponent of the power decay η₀/t^γ: give --decay power with it"
            )
        if self.scale is not None and self.method is not Method.DPVD:
            raise DpvdError(f"scale can be chosen for method dpvd only, not for {self.method}")
        self._check_posterior()
        self._check_optimizer()
        self._check_adaptive()
        self._check_bands()
        self._check_account()
        self._check_prediction_sets()
        if self.private_bounds is not None and self.private_bounds >= (self.epsilon or 0.0):
            raise DpvdError(
                "private_bounds must be a part of the budget, less than epsilon"
                f" ({self.epsilon}), got {self.private_bounds}"
            )

    def _check_posterior(self) -> None:
        if self.posterior is None:
            return
        if self.method is not Method.DPVD:
            raise DpvdError(f"posterior can be chosen for method dpvd only, not for {self.method}")
        needed = Scale.LEARNED if self.posterior is Posterior.LEARNED else Scale.PRIVACY
        scale = self.scale or Scale.PRIVACY
        if scale is not needed:
            raise DpvdError(
                f"--posterior {self.posterior} goes with --scale {needed}, not with {scale}"
            )

    def _check_optimizer(self) -> None:
        if self.optimizer in (None, OptimizerKind.SGD):
            return
        if self.method is Method.DPVD and self.scale in (None, Scale.PRIVACY):
            raise DpvdError(
                f"optimizer {self.optimizer} does not pass the privacy noise on to the weights, on"
                " which --scale privacy rests: give --scale learned, or another method"
            )
        if self.learning_rate is None:
            raise DpvdError(
                f"optimizer {self.optimizer} needs --learning-rate: the recipe's is for sgd"
            )

    def _check_account(self) -> None:
        if self.account is None:
            return
        if self.method is Method.NONE:
            raise DpvdError("a run without privacy has no ε to draw: leave out --account")
        if self.seeded_noise:
            raise DpvdError(
                "noise that can be repeated does not add up: --seeded-noise and --account do not go"
                " together"
            )

    def _check_prediction_sets(self) -> None:
        if self.prediction_sets is None:
            return
        if self.method is Method.NONE:
            raise DpvdError(
                "prediction_sets spends a part of a privacy budget, and --method none has none"
            )
        if self.relation is not Relation.ADD_OR_REMOVE:
            # Another example in the place of one may go to the other part, and so change both.
            raise DpvdError(
                "prediction_sets is for --relation add-or-remove: examples that are replaced move"
                " between training and calibration"
            )
        if self.prediction_sets > _MOST_KEPT:
            raise DpvdError(
                f"prediction_sets keeps at most {_MOST_KEPT:g} of the examples from training, got"
                f" {self.prediction_sets:g}"
            )

    def _check_adaptive(self) -> None:
        is_adaptive = self.clipping is ClippingMode.ADAPTIVE
        if self.clip_quantile is not None and not is_adaptive:
            raise DpvdError("clip_quantile is of adaptive clipping: give --clipping adaptive, too")
        if is_adaptive and self.learning_rate is None:
            raise DpvdError(
                "clipping adaptive needs --learning-rate: the recipe's is for a clip norm that is"
                " known beforehand"
            )

    def _check_bands(self) -> None:
        if self.bands in (None, 1):
            return
        if self.method is Method.NONE:
            raise DpvdError("bands correlates privacy noise, and --method none has none")
        if self.method is Method.DPVD and self.scale in (None, Scale.PRIVACY):
            raise DpvdError(
                "bands correlates the noise of steps, and --scale privacy rests on noise that is"
                " independent: give --scale learned, or --method dpsgd or svi"
            )
        if self.optimizer is OptimizerKind.ADAM_BC:
            raise DpvdError("optimizer adam-bc corrects for independent noise: leave out --bands")
        if self.learning_rate is None:
            raise DpvdError("bands needs --learning-rate: the recipe's is for independent noise")

    @classmethod
    def from_given(cls, given: Mapping[str, Any]) -> "RunOptions":
        """Options as a command line gives them; ordinary training spends no ε and drops it."""
        options = dict(given)
        if options.get("method") == Method.NONE:
            options["epsilon"] = None
        for name in ("tuned", "public"):
            options[name] = options.get(name) or None  # typer: an empty list if not given
        return cls(**options)

    def given_for(self, part: Part) -> dict[str, Any]:
        """What was chosen of a plan or a recipe, by the names of its fields."""
        chosen = {}
        for name, setting in settings_of(type(self)).items():
            value = getattr(self, name)
            if setting.part is part and value is not None:
                chosen[name] = value
        return chosen

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        for name, value in plain.items():
            if isinstance(value, str):
                plain[name] = str(value)  # the text of an enumeration's member
        return plain
