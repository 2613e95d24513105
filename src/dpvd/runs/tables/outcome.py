"""What a run on a table came to, and its record."""

import math
from dataclasses import dataclass
from typing import Any

from dpvd import __version__
from dpvd.data import EncodedTable, Encoder
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee
from dpvd.runs.environment import environment, now
from dpvd.runs.network import Method
from dpvd.runs.record import RunRecord
from dpvd.runs.tables.prepare import PreparedTable
from dpvd.tabular import TableModel, TableNetwork, TableRecipe

__all__ = ["Outcome", "outcome_record"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What training left, before it is written down."""

    model: TableModel
    guarantee: Guarantee
    recipe: TableRecipe | None
    plans: dict[str, PrivacyPlan]
    train: EncodedTable
    test: EncodedTable | None
    left_out: tuple[str, ...]
    seconds: float


def outcome_record(
    run: PreparedTable, outcome: Outcome, test: dict[str, Any], key: bytes, checksum: str
) -> RunRecord:
    """The record of a run.

    Args:
        run: what was prepared.
        outcome: what came of it.
        test: results on the test rows.
        key: of the data's checksum.
        checksum: of the model's file.
    """
    options = run.options
    train = outcome.train
    schema = train.schema
    main = outcome.plans.get("training") or outcome.plans["moments"]
    recipe = {} if outcome.recipe is None else outcome.recipe.to_dict()
    return RunRecord(
        method=str(options.method),
        seed=options.seed,
        dataset={
            "name": run.name,
            "train": train.units,
            "rows": train.rows,
            "test": 0 if outcome.test is None else outcome.test.rows,
            "classes": len(schema.target.classes) or None,
            "checksum": train.checksum(key),
            "preprocessing": _preprocessing(train.encoder, outcome.recipe),
        },
        model={
            "network": {
                "kind": "table",
                "features": outcome.model.features,
                "classes": outcome.model.classes,
                "whitened": outcome.model.whitened,
                **_hidden(outcome.model),
            },
            "layers": _layers(outcome.model, outcome.recipe),
            "parameters": sum(weight.numel() for weight in outcome.model.head.parameters()),
            "checksum": checksum,
        },
        plan=main.to_dict(),
        recipe={name: value for name, value in recipe.items() if value},
        guarantee=outcome.guarantee.to_dict(),
        history=[],
        test=test,
        seconds=outcome.seconds,
        environment=environment(),
        created=now(),
        version=__version__,
        table={
            "kind": "classification" if schema.target.is_classification else "regression",
            "encoder": train.encoder.to_dict(),
            "classes": list(schema.target.classes),
            "target": schema.target.name,
            "unit": run.base.unit,
            "id": schema.id,
            "rows_per_unit": schema.rows_per_unit,
            "estimated": list(run.estimated),
            "left_out": list(outcome.left_out),
        },
        releases=_releases(outcome.plans) if options.method is not Method.NONE else [],
        declared={} if schema.rows_per_unit is None else {"rows_per_unit": _rows_words(run)},
    )


def _rows_words(run: PreparedTable) -> str:
    return f"at most {run.schema.rows_per_unit} of each {run.base.unit} take part, chosen at random"


def _preprocessing(encoder: Encoder, recipe: TableRecipe | None) -> str:
    centred = ", then centred by their exact mean"
    if recipe is not None:
        centred = ", then centred by a noisy mean" if recipe.mean else ""
    hats = f", numbers also by hat functions at {encoder.knots} knots" if encoder.knots else ""
    return (
        f"each row by itself, by the schema: {encoder.width} features of"
        f" {len(encoder.schema.used)} columns{hats}; rows are scaled to length 1{centred}"
    )


def _hidden(model: TableModel) -> dict[str, Any]:
    """What a network adds to the description of a model."""
    if not isinstance(model.head, TableNetwork):
        return {}
    return {
        "hidden": model.head.hidden.out_features,
        "hidden_features": len(model.seen),
        "prior_std": model.head.prior_std,
        "points": model.head.points,
    }


def _layers(model: TableModel, recipe: TableRecipe | None) -> list[str]:
    moments = "exact moments" if recipe is None else "noisy moments"
    is_whitened = model.whitened and (recipe is None or recipe.second > 0)
    rows = f"rows: {model.features} features" + (
        ", centred" if recipe is None or recipe.mean else ""
    )
    if is_whitened:
        rows += f", whitened by {moments}"
    outputs = model.head.out_features
    if not isinstance(model.head, TableNetwork):
        return [f"{rows}, head: Linear {model.head.in_features}→{outputs}"]
    units = model.head.hidden
    return [
        f"{rows}, linear path: {model.head.inputs}→{outputs}",
        f"beside it: {units.in_features}→{units.out_features} tanh→{outputs}",
    ]


def _releases(plans: dict[str, PrivacyPlan]) -> list[dict[str, Any]]:
    """Each with its share of 1/z², which composes additively for sums over everybody."""
    costs = {
        name: plan.steps / (plan.noise_multiplier or math.inf) ** 2 for name, plan in plans.items()
    }
    whole = sum(costs.values())
    return [
        {
            "name": name,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "share": costs[name] / whole,
            "plan": plan.to_dict(),
        }
        for name, plan in plans.items()
    ]
