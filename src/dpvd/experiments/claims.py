"""What the paper says: its numbers and its sentences, as data."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from dpvd.errors import DpvdError

__all__ = ["Claim", "Claims", "PublishedAccuracy", "PublishedNoise", "load_claims", "read_claims"]


@dataclass(frozen=True)
class PublishedAccuracy:
    """An accuracy that the paper prints."""

    where: str
    dataset: str
    method: str
    published: float
    epsilon: float | None = None


@dataclass(frozen=True)
class PublishedNoise:
    """A noise level σ = noise/(2C) that the paper prints, with the run it is meant for."""

    dataset: str
    method: str
    sigma: float
    epsilon: float
    sampling_prob: float
    steps: int


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the check that judges it and what the check takes.

    ``reason`` says why the verdict ``reason_for`` comes out. It is written by hand, for that
    verdict only.
    """

    id: str
    where: str
    text: str
    check: str
    reason: str
    reason_for: str
    given: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claims:
    """All of them."""

    numbers: tuple[PublishedAccuracy, ...]
    noise: tuple[PublishedNoise, ...]
    sentences: tuple[Claim, ...]

    def accuracy(self, dataset: str, method: str, epsilon: float | None) -> float | None:
        """What the paper prints for a cell; None where it prints nothing."""
        cell = (dataset, method, epsilon)
        found = [
            each.published
            for each in self.numbers
            if (each.dataset, each.method, each.epsilon) == cell
        ]
        return found[0] if found else None


@cache
def load_claims() -> Claims:
    """The claims that come with the package."""
    return read_claims((files("dpvd.experiments") / "claims.toml").read_text(encoding="utf-8"))


def read_claims(text: str) -> Claims:
    """Parse claims.

    Raises:
        DpvdError: if the text is no TOML, or an entry has missing or unknown fields.
    """
    try:
        tables = tomllib.loads(text)
        own = ("id", "where", "text", "check", "reason", "reason_for")
        return Claims(
            tuple(PublishedAccuracy(**entry) for entry in tables["number"]),
            tuple(PublishedNoise(**entry) for entry in tables["sigma"]),
            tuple(
                Claim(
                    **{name: entry[name] for name in own},
                    given={key: value for key, value in entry.items() if key not in own},
                )
                for entry in tables["claim"]
            ),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise DpvdError(f"the claims cannot be read: {error}") from error
