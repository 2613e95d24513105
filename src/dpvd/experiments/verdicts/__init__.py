"""What becomes of the paper's claims, and why."""

from dpvd.experiments.verdicts.checks import CHECKS
from dpvd.experiments.verdicts.contrasts import FEWEST, Contrast, assumed_spread, contrast
from dpvd.experiments.verdicts.findings import NOT_RUN, Finding, Verdict
from dpvd.experiments.verdicts.judge import Judgement, judge
from dpvd.experiments.verdicts.summary import DropoutAnswer, dropout_answer, overall, summary_table

__all__ = [
    "CHECKS",
    "FEWEST",
    "NOT_RUN",
    "Contrast",
    "DropoutAnswer",
    "Finding",
    "Judgement",
    "Verdict",
    "assumed_spread",
    "contrast",
    "dropout_answer",
    "judge",
    "overall",
    "summary_table",
]
