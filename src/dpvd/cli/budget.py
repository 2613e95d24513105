"""``dpvd budget``: what a privacy budget costs in noise, by every accountant, and the reverse."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from dp_accounting import DpEvent
from rich.table import Table

from dpvd.cli.console import out, print_json, print_text, say
from dpvd.cli.options import (
    AsJson,
    Delta,
    RelationChoice,
    SamplingChoice,
    warn_of_large_delta,
)
from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.privacy import (
    AccountantName,
    Relation,
    SamplingKind,
    accountant_for,
    noise_multiplier_for,
    round_up,
    sampled_event,
    sampling_in_words,
    sampling_rate,
    steps_in,
)
from dpvd.privacy import epsilon as epsilon_of
from dpvd.settings import Group

__all__ = ["EXAMPLES", "budget"]

_MNIST = "--delta 1e-5 --examples 60000 --batch-size 600 --epochs 20"
EXAMPLES = (
    f"dpvd budget --epsilon 1 {_MNIST}",
    f"dpvd budget --noise-multiplier 2 {_MNIST}",
)

# Towards these ends ε is 0 or in the millions: beyond them no noise is worth a question.
LEAST_NOISE = 1e-3
MOST_NOISE = 1e7

WORDS = {
    AccountantName.PLD: "privacy losses, tight",
    AccountantName.RDP: "Rényi, moments",
    AccountantName.ZCDP: "concentrated, truncated",
    AccountantName.ADVANCED: "composition theorem",
}


def budget(
    delta: Delta,
    examples: Annotated[
        int,
        typer.Option(
            help="N, the number of training examples.",
            show_default=False,
            rich_help_panel=Group.TRAINING,
        ),
    ],
    batch_size: Annotated[
        int,
        typer.Option(
            help="Expected batch size.",
            show_default=False,
            rich_help_panel=Group.TRAINING,
        ),
    ],
    epochs: Annotated[
        float,
        typer.Option(
            help="Passes over the data.",
            show_default=False,
            rich_help_panel=Group.TRAINING,
        ),
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="ε to spend: the table shows the noise it takes. This or --noise-multiplier.",
            rich_help_panel=Group.PRIVACY,
        ),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Noise over sensitivity: the table shows its ε. This or --epsilon.",
            rich_help_panel=Group.PRIVACY,
        ),
    ] = None,
    relation: RelationChoice = Relation.ADD_OR_REMOVE,
    sampling: SamplingChoice = SamplingKind.POISSON,
    as_json: AsJson = False,
) -> None:
    """Show the noise each accountant requires for (ε, δ), or the ε of a given noise."""
    if (epsilon is None) == (noise_multiplier is None):
        raise DpvdError("give either --epsilon or --noise-multiplier")
    if epsilon is not None:
        positive(epsilon=epsilon)
    if noise_multiplier is not None:
        _check_noise(noise_multiplier)
    in_unit_interval(delta=delta)
    steps = steps_in(epochs, batch_size=batch_size, examples=examples)
    question = _Question(examples, batch_size, steps, sampling, relation, delta)
    warn_of_large_delta(delta, examples)
    with say.status("accounting"):
        answers = [_row(question, name, epsilon, noise_multiplier) for name in AccountantName]
    rows = [row for row in answers if row is not None]
    if not rows:
        raise DpvdError(
            f"no accountant has a theorem for {sampling} sampling under the {relation} relation"
        )
    if as_json:
        print_json(rows)
    else:
        _show(question, rows, epsilon)


@dataclass(frozen=True)
class _Question:
    """All that an account depends on but the noise."""

    examples: int
    batch_size: int
    steps: int
    sampling: SamplingKind
    relation: Relation
    delta: float

    def event(self, noise_multiplier: float) -> DpEvent:
        return sampled_event(
            self.sampling,
            noise_multiplier,
            batch_size=self.batch_size,
            examples=self.examples,
            steps=self.steps,
        )

    @property
    def rate(self) -> float:
        return sampling_rate(self.batch_size, self.examples)


def _check_noise(noise_multiplier: float) -> None:
    if noise_multiplier != 0 and not LEAST_NOISE <= noise_multiplier <= MOST_NOISE:
        raise DpvdError(
            f"noise_multiplier must be 0 or from {LEAST_NOISE:g} to {MOST_NOISE:g}, got"
            f" {noise_multiplier!r}"
        )


def _row(
    question: _Question, name: AccountantName, epsilon: float | None, noise_multiplier: float | None
) -> dict[str, Any] | None:
    """One accountant's answer; None where it has no theorem for the sampling and relation."""
    relation = question.relation
    delta = question.delta
    if not accountant_for(name, relation).supports(question.event(1.0)):
        return None
    if epsilon is not None:
        noise_multiplier = noise_multiplier_for(
            epsilon, delta, question.event, accountant=name, relation=relation
        )
    assert noise_multiplier is not None  # one of the two was given
    spent = epsilon_of(question.event(noise_multiplier), delta, accountant=name, relation=relation)
    reach = 1 if relation is Relation.ADD_OR_REMOVE else 2
    return {
        "accountant": str(name),
        "noise_multiplier": noise_multiplier,
        "epsilon": spent if math.isfinite(spent) else None,
        "delta": delta,
        "sigma": noise_multiplier * reach / 2,
        "steps": question.steps,
        "sampling_prob": question.rate,
    }


def _show(question: _Question, rows: list[dict[str, Any]], epsilon: float | None) -> None:
    reverse = epsilon is None
    given = f"noise {rows[0]['noise_multiplier']:g}" if reverse else f"ε up to {epsilon:g}"
    print_text(f"{given} at δ = {question.delta:g}, {question.relation} relation", "bold")
    drawn = sampling_in_words(
        question.sampling, batch_size=question.batch_size, examples=question.examples
    )
    print_text(f"{question.examples:,} examples, {question.steps:,} steps, {drawn}")
    table = Table()
    table.add_column("accountant")
    table.add_column("noise z", justify="right")
    table.add_column("the paper's σ", justify="right")
    table.add_column("ε", justify="right")
    table.add_column("how it adds up", style="dim")
    for row in rows:
        spent = "∞" if row["epsilon"] is None else round_up(row["epsilon"])
        accountant = row["accountant"]
        noise = _up(row["noise_multiplier"], reverse)
        sigma = _up(row["sigma"], reverse)
        words = WORDS[AccountantName(accountant)]
        table.add_row(accountant, f"{noise:.4f}", f"{sigma:.4f}", spent, words)
    out.print(table)
    print_text("z is the noise over the sensitivity;", "dim")
    print_text("the paper's σ is the same noise over 2C (flat clipping).", "dim")


def _up(noise: float, given: bool) -> float:
    """Noise that was given is shown as it is, noise that is required is rounded up."""
    if given:
        return noise
    return math.ceil(noise * 1e4) / 1e4
