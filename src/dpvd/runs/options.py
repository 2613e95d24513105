"""What a user may choose for a run, checked before anything else happens."""

from dataclasses import asdict, dataclass
from typing import Any

from dpvd.errors import DpvdError, choice, in_unit_interval, non_negative, positive, positive_int
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName, Relation, SamplingKind
from dpvd.runs.network import Method, Scale
from dpvd.runs.recipes import NetworkKind
from dpvd.training import Decay

__all__ = ["RunOptions"]

SEEDS = 2**63  # what torch's generators take
LEAST, MOST = 1e-30, 1e30  # what stays finite and above zero in 32-bit arithmetic, with some room


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose; None leaves the choice to the default rule.

    Raises:
        DpvdError: if a value is out of range, or the choices contradict each other.
    """

    delta: float
    epsilon: float | None = None
    method: Method = Method.DPVD
    seed: int = 0
    network: NetworkKind = NetworkKind.MLP
    hidden: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    accountant: AccountantName = AccountantName.PLD
    relation: Relation = Relation.ADD_OR_REMOVE
    sampling: SamplingKind = SamplingKind.POISSON
    scale: Scale | None = None
    learning_rate: float | None = None
    decay: Decay | None = None
    gamma: float | None = None
    clipping: ClippingMode | None = None
    clip_norm: float | None = None
    kl_weight: float | None = None
    seeded_noise: bool = False

    def __post_init__(self) -> None:
        self._parse_names()
        in_unit_interval(delta=self.delta)
        if self.method is not Method.NONE:
            if self.epsilon is None:
                raise DpvdError(
                    f"method {self.method} needs a privacy budget: give --epsilon, or use --method"
                    " none"
                )
            positive(epsilon=self.epsilon)
        if (
            isinstance(self.seed, bool)
            or not isinstance(self.seed, int)
            or not 0 <= self.seed < SEEDS
        ):
            raise DpvdError(f"seed must be an integer from 0 to {SEEDS - 1}, got {self.seed!r}")
        for name in ("hidden", "batch_size"):
            if getattr(self, name) is not None:
                positive_int(**{name: getattr(self, name)})
        for name in ("epochs", "learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is None:
                continue
            positive(**{name: value})
            if not LEAST <= value <= MOST:
                raise DpvdError(f"{name} must lie between {LEAST:g} and {MOST:g}, got {value!r}")
        for name in ("kl_weight", "gamma"):
            if getattr(self, name) is not None:
                non_negative(**{name: getattr(self, name)})
        if self.gamma is not None and self.decay is not Decay.POWER:
            raise DpvdError(
                "gamma is the exponent of the power decay η₀/t^γ: give --decay power with it"
            )
        if self.scale is not None and self.method is not Method.DPVD:
            raise DpvdError(f"scale can be chosen for method dpvd only, not for {self.method}")

    def _parse_names(self) -> None:
        """Accept names as plain text too."""
        parsed = {
            "method": choice(self.method, Method, "method"),
            "network": choice(self.network, NetworkKind, "network"),
            "accountant": AccountantName.parse(self.accountant),
            "relation": choice(self.relation, Relation, "relation"),
            "sampling": choice(self.sampling, SamplingKind, "sampling"),
            "decay": None if self.decay is None else choice(self.decay, Decay, "decay"),
            "scale": None if self.scale is None else choice(self.scale, Scale, "scale"),
            "clipping": (
                None if self.clipping is None else choice(self.clipping, ClippingMode, "clipping")
            ),
        }
        for name, value in parsed.items():
            object.__setattr__(self, name, value)

    def given_for(self, part: str) -> dict[str, Any]:
        names = {
            "plan": ("sampling", "relation"),
            "recipe": ("learning_rate", "decay", "gamma", "kl_weight"),
        }[part]
        chosen = {name: getattr(self, name) for name in names}
        return {name: value for name, value in chosen.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }
