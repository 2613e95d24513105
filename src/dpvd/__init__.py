"""Differentially private training of Bayesian neural networks by variational dropout.

The names below are the ones most programs need. They and the packages (``dpvd.nn``, ``dpvd.data``,
...) are loaded when first used: neither ``import dpvd`` nor accounting alone (``dpvd.privacy``)
loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # "import x as x" tells type checkers that the name is meant for users.
    from dpvd import accelerate as accelerate
    from dpvd import audit as audit
    from dpvd import batches as batches
    from dpvd import data as data
    from dpvd import errors as errors
    from dpvd import experiments as experiments
    from dpvd import export as export
    from dpvd import features as features
    from dpvd import files as files
    from dpvd import grads as grads
    from dpvd import lightning as lightning
    from dpvd import loader as loader
    from dpvd import losses as losses
    from dpvd import mechanisms as mechanisms
    from dpvd import native as native
    from dpvd import nn as nn
    from dpvd import plan as plan
    from dpvd import privacy as privacy
    from dpvd import ranks as ranks
    from dpvd import report as report
    from dpvd import runs as runs
    from dpvd import settings as settings
    from dpvd import sklearn as sklearn
    from dpvd import skorch as skorch
    from dpvd import statistics as statistics
    from dpvd import tabular as tabular
    from dpvd import training as training
    from dpvd import transformers as transformers
    from dpvd import tree as tree
    from dpvd.errors import DpvdError
    from dpvd.grads import ClippedSum, Clipping, Problem, check, clipped_grad, fix
    from dpvd.nn import kl, log_alpha, prune, sparsity, variational
    from dpvd.plan import PrivacyPlan
    from dpvd.privacy import Guarantee, Relation
    from dpvd.runs import RunRecord, TrainedRun, predict_dist
    from dpvd.sklearn import DPVDClassifier, DPVDRegressor
    from dpvd.training import PrivateStep, Recipe, fit, make_private, share_weights

__version__ = "0.1.0"  # the only place: pyproject.toml reads it from here

_MODULES = (
    "accelerate",
    "audit",
    "batches",
    "data",
    "errors",
    "experiments",
    "export",
    "features",
    "files",
    "grads",
    "lightning",
    "loader",
    "losses",
    "mechanisms",
    "native",
    "nn",
    "plan",
    "privacy",
    "ranks",
    "report",
    "runs",
    "settings",
    "sklearn",
    "skorch",
    "statistics",
    "tabular",
    "training",
    "transformers",
    "tree",
)

_HOMES = {
    "ClippedSum": "dpvd.grads",
    "Clipping": "dpvd.grads",
    "DPVDClassifier": "dpvd.sklearn",
    "DPVDRegressor": "dpvd.sklearn",
    "DpvdError": "dpvd.errors",
    "Guarantee": "dpvd.privacy",
    "PrivacyPlan": "dpvd.plan",
    "PrivateStep": "dpvd.training",
    "Problem": "dpvd.grads",
    "Recipe": "dpvd.training",
    "Relation": "dpvd.privacy",
    "RunRecord": "dpvd.runs",
    "TrainedRun": "dpvd.runs",
    "check": "dpvd.grads",
    "clipped_grad": "dpvd.grads",
    "fit": "dpvd.training",
    "fix": "dpvd.grads",
    "kl": "dpvd.nn",
    "log_alpha": "dpvd.nn",
    "make_private": "dpvd.training",
    "predict_dist": "dpvd.runs",
    "prune": "dpvd.nn",
    "share_weights": "dpvd.training",
    "sparsity": "dpvd.nn",
    "variational": "dpvd.nn",
}

__all__ = [
    "ClippedSum",
    "Clipping",
    "DPVDClassifier",
    "DPVDRegressor",
    "DpvdError",
    "Guarantee",
    "PrivacyPlan",
    "PrivateStep",
    "Problem",
    "Recipe",
    "Relation",
    "RunRecord",
    "TrainedRun",
    "check",
    "clipped_grad",
    "fit",
    "fix",
    "kl",
    "log_alpha",
    "make_private",
    "predict_dist",
    "prune",
    "share_weights",
    "sparsity",
    "variational",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for; called only for names that are not here yet."""
    if name in _MODULES:
        return import_module(f"dpvd.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpvd' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
