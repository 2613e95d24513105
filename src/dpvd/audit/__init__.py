"""Audits: ε from below, measured on the engine that trains."""

from dpvd.audit.bounds import (
    Scores,
    clopper_pearson,
    epsilon_by_threshold,
    epsilon_of_gaussian_scores,
    mu_of_gaussian_scores,
)
from dpvd.audit.family import NoiseFamily
from dpvd.audit.one_run import (
    Guesses,
    epsilon_by_f_dp,
    epsilon_by_guesses,
    guess,
    guesses_to_make,
    p_value,
)
from dpvd.audit.result import AuditResult, Verdict
from dpvd.audit.white_box import audit_engine, canary_scores, default_trials

__all__ = [
    "AuditResult",
    "Guesses",
    "NoiseFamily",
    "Scores",
    "Verdict",
    "audit_engine",
    "canary_scores",
    "clopper_pearson",
    "default_trials",
    "epsilon_by_f_dp",
    "epsilon_by_guesses",
    "epsilon_by_threshold",
    "epsilon_of_gaussian_scores",
    "guess",
    "guesses_to_make",
    "mu_of_gaussian_scores",
    "p_value",
]
