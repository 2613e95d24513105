"""Tables: one family of linear models, chosen by public numbers, learnt from noisy statistics."""

from dpvd.tabular.codes import class_codes
from dpvd.tabular.estimate import (
    Estimates,
    estimate_schema,
    failures_for,
    provisional,
    release_plans,
)
from dpvd.tabular.fit import TableFit, fit_table, rehearse_table
from dpvd.tabular.model import Prediction, TableModel
from dpvd.tabular.network import TableNetwork
from dpvd.tabular.ordinary import fit_ordinary
from dpvd.tabular.recipe import (
    TableMethod,
    TableNetworkKind,
    TableRecipe,
    choose,
    choose_plain,
    knots_for,
)

__all__ = [
    "Estimates",
    "Prediction",
    "TableFit",
    "TableMethod",
    "TableModel",
    "TableNetwork",
    "TableNetworkKind",
    "TableRecipe",
    "choose",
    "choose_plain",
    "class_codes",
    "estimate_schema",
    "failures_for",
    "fit_ordinary",
    "fit_table",
    "knots_for",
    "provisional",
    "rehearse_table",
    "release_plans",
]
