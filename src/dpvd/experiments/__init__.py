"""The paper's experiments: specs, runs, records, and what becomes of its claims."""

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.artefacts import Artefacts, write_artefacts
from dpvd.experiments.catalogue import Experiment, TuningCell, runs_of, tuning_cells
from dpvd.experiments.claims import Claims, load_claims
from dpvd.experiments.execute import run_spec
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.reproduction import Folder, Status, reproduce
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Part, Spec, Variant
from dpvd.experiments.store import ResultStore
from dpvd.experiments.tuning import Tuning, TuningStore, choose, trials
from dpvd.experiments.verdicts import Finding, Judgement, Verdict, judge

__all__ = [
    "PROTOCOLS",
    "Artefacts",
    "Claims",
    "Experiment",
    "ExperimentProtocol",
    "ExperimentResult",
    "Finding",
    "Folder",
    "Judgement",
    "Part",
    "ResultStore",
    "Results",
    "Spec",
    "Status",
    "Summary",
    "Tuning",
    "TuningCell",
    "TuningStore",
    "Variant",
    "Verdict",
    "choose",
    "judge",
    "load_claims",
    "reproduce",
    "run_spec",
    "runs_of",
    "trials",
    "tuning_cells",
    "write_artefacts",
]
