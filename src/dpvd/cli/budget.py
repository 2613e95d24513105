"""``dpvd budget``: what a privacy budget costs in noise, by every accountant, and the reverse."""

import math
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

from dpvd.cli.console import out, print_json, print_text, say
from dpvd.cli.options import AsJson, Delta, check_steps, warn_of_large_delta
from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.plan import PrivacyPlan, SamplingKind
from dpvd.privacy import AccountantName, Relation, accountant_for, round_up

__all__ = ["budget"]

# Outside of this, and within it at the ends, ε is 0 or in the millions: no noise is worth a question there.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e7

WORDS = {
    AccountantName.PLD: "privacy losses, tight",
    AccountantName.RDP: "Rényi, moments",
    AccountantName.ZCDP: "concentrated, truncated",
    AccountantName.ADVANCED: "composition theorem",
}


def budget(
    delta: Delta,
    examples: Annotated[int, typer.Option(help="N, the number of training examples.", show_default=False)],
    batch_size: Annotated[int, typer.Option(help="Expected batch size.", show_default=False)],
    epochs: Annotated[float, typer.Option(help="Passes over the data.", show_default=False)],
    epsilon: Annotated[float | None, typer.Option(help="ε to spend: the table shows the noise it takes.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise instead: the table shows ε.")] = None,
    relation: Annotated[Relation, typer.Option(help="Which data sets are neighbours.")] = Relation.ADD_OR_REMOVE,
    sampling: Annotated[SamplingKind, typer.Option(help="How batches are drawn.")] = SamplingKind.POISSON,
    as_json: AsJson = False,
) -> None:
    """Show the noise that every accountant asks for at a budget, or the ε it grants to a noise."""
    if (epsilon is None) == (noise_multiplier is None):
        raise DpvdError("give either --epsilon or --noise-multiplier")
    if epsilon is not None:
        positive(epsilon=epsilon)
    if noise_multiplier is not None:
        _check_noise(noise_multiplier)
    check_steps(examples, batch_size, epochs)
    in_unit_interval(delta=delta)
    plan = PrivacyPlan(examples, batch_size, epochs=epochs, relation=relation, sampling=sampling)
    warn_of_large_delta(delta, examples)
    with say.status("accounting"):
        answers = [_row(plan, name, epsilon, noise_multiplier, delta) for name in AccountantName]
    rows = [row for row in answers if row is not None]
    if not rows:
        raise DpvdError(f"no accountant has a theorem for {sampling} sampling under the {relation} relation")
    if as_json:
        print_json(rows)
    else:
        _show(plan, rows, delta, epsilon)


def _check_noise(noise_multiplier: float) -> None:
    if noise_multiplier != 0 and not LEAST_NOISE <= noise_multiplier <= MOST_NOISE:
        raise DpvdError(
            f"noise_multiplier must be 0 or from {LEAST_NOISE:g} to {MOST_NOISE:g}, got {noise_multiplier!r}"
        )


def _row(
    plan: PrivacyPlan, name: AccountantName, epsilon: float | None, noise_multiplier: float | None, delta: float
) -> dict[str, Any] | None:
    """One accountant's answer; None where it has no theorem for the sampling and relation."""
    if not accountant_for(name, plan.relation).supports(plan.sampler.event(1.0, 1)):
        return None
    if epsilon is not None:
        calibrated = plan.calibrate(epsilon, delta, name)
    else:
        calibrated = replace(plan, noise_multiplier=noise_multiplier)
    spent = calibrated.epsilon(delta, name)
    multiplier = calibrated.noise_multiplier
    assert multiplier is not None
    reach = 1 if plan.relation is Relation.ADD_OR_REMOVE else 2
    return {
        "accountant": str(name),
        "noise_multiplier": multiplier,
        "epsilon": spent if math.isfinite(spent) else None,
        "delta": delta,
        "sigma": multiplier * reach / 2,
        "steps": plan.steps,
        "sampling_prob": plan.sampling_prob,
    }


def _show(plan: PrivacyPlan, rows: list[dict[str, Any]], delta: float, epsilon: float | None) -> None:
    reverse = epsilon is None
    given = f"noise {rows[0]['noise_multiplier']:g}" if reverse else f"ε up to {epsilon:g}"
    print_text(f"{given} at δ = {delta:g}, {plan.relation} relation", "bold")
    print_text(f"{plan.examples:,} examples, {plan.steps:,} steps, {plan.sampler.describe()}")
    table = Table()
    table.add_column("accountant")
    table.add_column("noise z", justify="right")
    table.add_column("the paper's σ", justify="right")
    table.add_column("ε", justify="right")
    table.add_column("how it adds up", style="dim")
    for row in rows:
        spent = "∞" if row["epsilon"] is None else round_up(row["epsilon"])
        noise, sigma = (f"{_up(row[name], reverse):.4f}" for name in ("noise_multiplier", "sigma"))
        table.add_row(row["accountant"], noise, sigma, spent, WORDS[AccountantName(row["accountant"])])
    out.print(table)
    print_text("z is the noise over the sensitivity;", "dim")
    print_text("the paper's σ is the same noise over 2C (flat clipping).", "dim")


def _up(noise: float, given: bool) -> float:
    """Noise that was asked for is shown as it is; noise that is needed is shown rounded up."""
    return noise if given else math.ceil(noise * 1e4) / 1e4
