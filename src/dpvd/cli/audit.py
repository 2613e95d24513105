"""``dpvd audit``: ε from below, measured on the engine."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dpvd.audit import AuditResult, audit_engine, default_trials
from dpvd.cli.console import print_json, print_line, say, warn
from dpvd.cli.options import AsJson, RelationChoice
from dpvd.errors import DpvdError, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.report import check_plot, write_audit_plot, write_report
from dpvd.runs import RunRecord, write_audit
from dpvd.settings import Group

__all__ = ["EXAMPLES", "audit"]

EXAMPLES = (
    "dpvd audit runs/first",
    "dpvd audit --engine --epsilon 4 --delta 1e-5",
)

VIOLATED = 1  # exit code
EXAMPLES_OF_ENGINE = 10_000  # all of them canaries
STEPS_OF_ENGINE = 4


def audit(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of a finished run: its plan is audited.", show_default=False),
    ] = None,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine",
            help="Audit the installed engine on a plan of its own, of 10,000 examples.",
            rich_help_panel=Group.DATA,
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of --engine: ε that the plan claims. Required unless a run is named.",
            rich_help_panel=Group.PRIVACY,
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="δ of claim and bound. Default: that of the run.",
            rich_help_panel=Group.PRIVACY,
            show_default=False,
        ),
    ] = None,
    relation: RelationChoice = Relation.ADD_OR_REMOVE,
    clipping: Annotated[
        ClippingMode,
        typer.Option(help="Of --engine: how gradients are clipped.", rich_help_panel=Group.PRIVACY),
    ] = ClippingMode.FLAT,
    batch_size: Annotated[
        int,
        typer.Option(
            help="Of --engine: expected batch; fewer than all are Poisson samples.",
            rich_help_panel=Group.TRAINING,
        ),
    ] = EXAMPLES_OF_ENGINE,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Audit so many steps, and the claim for them. Default: all steps of a run, 4 of"
            " the engine.",
            rich_help_panel=Group.TRAINING,
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Canaries to judge. Default: as many as some 20,000 steps have room for.",
            rich_help_panel=Group.TRAINING,
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            help="Of the verdict: a true claim is called violated once in 1/(1 - confidence).",
            rich_help_panel=Group.PRIVACY,
        ),
    ] = 0.999,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="New file, .svg or .png, for a plot of claimed and measured ε. Default: no plot.",
            rich_help_panel=Group.OUTPUT,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure ε from below, by canaries; exit code 1 if more is spent than claimed."""
    if plot is not None:
        check_plot(plot)
    if engine == (run is not None):
        raise DpvdError("name a run to audit, or give --engine")
    if run is not None:
        plan, delta = _plan_of(run, delta, steps)
    else:
        if epsilon is None or delta is None:
            raise DpvdError("--engine needs the claim to audit: --epsilon and --delta")
        taken = STEPS_OF_ENGINE if steps is None else steps
        plan = PrivacyPlan(
            examples=EXAMPLES_OF_ENGINE,
            batch_size=batch_size,
            steps=taken,
            relation=relation,
            clipping=Clipping(clipping),
        ).calibrate(epsilon, delta)
    with say.status("auditing"):
        result = audit_engine(
            plan,
            delta=delta,
            trials=default_trials(plan) if trials is None else trials,
            confidence=confidence,
        )
    _show(result, as_json)
    _keep(result, run, plot)
    if not result.is_consistent:
        raise typer.Exit(VIOLATED)


def _plan_of(run: Path, delta: float | None, steps: int | None) -> tuple[PrivacyPlan, float]:
    """The plan and δ of a run, or of its first steps."""
    record = RunRecord.read(run)
    if not record.is_private:
        raise DpvdError(f"the run in {run} claims no privacy: there is nothing to audit")
    plan = PrivacyPlan.from_dict(record.plan)
    if steps is not None:
        positive_int(steps=steps)
        plan = replace(plan, steps=min(steps, plan.steps))
    return plan, float(record.guarantee["delta"]) if delta is None else delta


def _keep(result: AuditResult, run: Path | None, plot: Path | None) -> None:
    """Write what was asked for. A folder that cannot be written to does not change the verdict."""
    try:
        if plot is not None:
            write_audit_plot(result, plot)
        if run is not None:
            record = RunRecord.read(run)
            write_audit(run, record, result)
            write_report(record, run)
    except DpvdError as error:
        warn(f"the audit is not kept: {error}")


def _show(result: AuditResult, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
        return
    print_line(f"claimed ε   {result.claimed_epsilon:.4g} at δ = {result.delta:g}")
    share = result.lower_bound / result.claimed_epsilon
    print_line(
        f"measured ε  at least {result.lower_bound:.4g}, {share:.0%} of the claim, with confidence"
        f" {result.confidence:.12g}"
    )
    print_line(f"attack      {result.attack}")
    print_line(f"bound       {result.bound}; {result.trials:,} trials in {result.seconds:.0f} s")
    print_line(str(result.verdict), "green" if result.is_consistent else "bold red")
