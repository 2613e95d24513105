"""Runs: from options to a folder with model, record and ledger, and back."""

from dpvd.runs.architectures import NetworkKind
from dpvd.runs.measure import predict_dist, quick_look
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.options import RunOptions
from dpvd.runs.record import RunRecord
from dpvd.runs.train import PreparedRun, execute, prepare_run
from dpvd.runs.trained import TrainedRun

__all__ = [
    "Method",
    "NetworkKind",
    "NetworkSpec",
    "PreparedRun",
    "RunOptions",
    "RunRecord",
    "Scale",
    "TrainedRun",
    "execute",
    "predict_dist",
    "prepare_run",
    "quick_look",
]
