"""Estimators with scikit-learn's interface that learn tables under differential privacy."""

from dpvd.sklearn.account import RefitWarning, TotalPrivacy, reset_total_privacy, total_privacy
from dpvd.sklearn.classifier import ClassPrediction, DPVDClassifier
from dpvd.sklearn.regressor import DPVDRegressor, NumberPrediction

__all__ = [
    "ClassPrediction",
    "DPVDClassifier",
    "DPVDRegressor",
    "NumberPrediction",
    "RefitWarning",
    "TotalPrivacy",
    "reset_total_privacy",
    "total_privacy",
]
