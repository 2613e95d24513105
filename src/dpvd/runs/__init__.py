"""Runs: from options to a folder with model, record and ledger, and back."""

from dpvd.runs.execute import execute, train_and_evaluate
from dpvd.runs.load import TrainedRun
from dpvd.runs.metrics import evaluate, predict_dist
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.options import RunOptions
from dpvd.runs.own_run import load_own_model
from dpvd.runs.prepare import PreparedRun, prepare_run
from dpvd.runs.recipes import (
    NetworkKind,
    NetworkRule,
    default_batch_size,
    default_clipping,
    default_steps,
    ordinary_recipe,
    private_recipe,
)
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import CHECKPOINT, FIGURES, LEDGER, MODEL, OPTIONS, RECORD, REPORT
from dpvd.runs.spent import Total, event_of, total_spent

__all__ = [
    "CHECKPOINT",
    "FIGURES",
    "LEDGER",
    "MODEL",
    "OPTIONS",
    "RECORD",
    "REPORT",
    "Method",
    "NetworkKind",
    "NetworkRule",
    "NetworkSpec",
    "PreparedRun",
    "RunOptions",
    "RunRecord",
    "Scale",
    "Total",
    "TrainedRun",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "evaluate",
    "event_of",
    "execute",
    "load_own_model",
    "ordinary_recipe",
    "predict_dist",
    "prepare_run",
    "private_recipe",
    "total_spent",
    "train_and_evaluate",
]
