"""Tables: one family of linear models, chosen by public numbers, learnt from noisy statistics."""

from dpvd.tabular.codes import class_codes
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
    "fit_ordinary",
    "fit_table",
    "knots_for",
    "rehearse_table",
]
