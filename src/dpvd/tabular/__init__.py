"""Tables: one family of linear models, chosen by public numbers, learnt from noisy statistics."""

from dpvd.tabular.codes import class_codes
from dpvd.tabular.fit import TableFit, fit_table
from dpvd.tabular.model import Prediction, TableModel
from dpvd.tabular.ordinary import fit_ordinary
from dpvd.tabular.recipe import TableMethod, TableRecipe, choose, knots_for

__all__ = [
    "Prediction",
    "TableFit",
    "TableMethod",
    "TableModel",
    "TableRecipe",
    "choose",
    "class_codes",
    "fit_ordinary",
    "fit_table",
    "knots_for",
]
