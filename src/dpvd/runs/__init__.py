"""Runs: from options to a folder with model, record and ledger, and back."""

from dpvd.runs.audited import read_audit, write_audit
from dpvd.runs.charged import Charged, charged_in
from dpvd.runs.draw import DRAWN
from dpvd.runs.execute import execute, train_and_evaluate
from dpvd.runs.images import OwnImages, load_images
from dpvd.runs.load import TrainedRun
from dpvd.runs.manifest import write_manifest
from dpvd.runs.metrics import evaluate, predict_dist
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.options import RunOptions
from dpvd.runs.own_run import load_own_model, own_record, save_own_model
from dpvd.runs.prepare import PreparedRun, prepare_run
from dpvd.runs.recipes import (
    FeatureChoice,
    NetworkKind,
    NetworkRule,
    RecipeName,
    default_batch_size,
    default_clipping,
    default_steps,
    ordinary_recipe,
    private_recipe,
)
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import (
    AUDIT,
    CHECKPOINT,
    CHECKSUM_KEY,
    FIGURES,
    LEDGER,
    MANIFEST,
    MODEL,
    OPTIONS,
    RECORD,
    REPORT,
    SIGNATURE,
    read_key,
)
from dpvd.runs.signature import create_key, sign_run
from dpvd.runs.spent import Total, event_of, total_spent
from dpvd.runs.sweep import SWEEP
from dpvd.runs.tables import (
    INTERVAL,
    PreparedTable,
    TableChoice,
    TrainedTable,
    execute_table,
    prepare_table,
    resume_table,
)
from dpvd.runs.verify import Check, Verification, verify_run

__all__ = [
    "AUDIT",
    "CHECKPOINT",
    "CHECKSUM_KEY",
    "DRAWN",
    "FIGURES",
    "INTERVAL",
    "LEDGER",
    "MANIFEST",
    "MODEL",
    "OPTIONS",
    "RECORD",
    "REPORT",
    "SIGNATURE",
    "SWEEP",
    "Charged",
    "Check",
    "FeatureChoice",
    "Method",
    "NetworkKind",
    "NetworkRule",
    "NetworkSpec",
    "OwnImages",
    "PreparedRun",
    "PreparedTable",
    "RecipeName",
    "RunOptions",
    "RunRecord",
    "Scale",
    "TableChoice",
    "Total",
    "TrainedRun",
    "TrainedTable",
    "Verification",
    "charged_in",
    "create_key",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "evaluate",
    "event_of",
    "execute",
    "execute_table",
    "load_images",
    "load_own_model",
    "ordinary_recipe",
    "own_record",
    "predict_dist",
    "prepare_run",
    "prepare_table",
    "private_recipe",
    "read_audit",
    "read_key",
    "resume_table",
    "save_own_model",
    "sign_run",
    "total_spent",
    "train_and_evaluate",
    "verify_run",
    "write_audit",
    "write_manifest",
]
