"""A protocol that runs in a blink, and what tests make of it."""

from dataclasses import replace
from typing import Any

from dpvd.data import Dataset, load
from dpvd.experiments import ExperimentProtocol, ExperimentResult, Spec, Variant
from dpvd.experiments.catalogue import make_spec

TINY = ExperimentProtocol(
    "tiny",
    "digits",
    epochs=1,
    batch_size=200,
    hidden=4,
    learning_rate=0.05,
    seeds=2,
    sweep_seeds=2,
    rates=(0.1, 1.0),
    gammas=(0.0,),
    hidden_sweep=(2, 4),
    epochs_sweep=(1, 2),
    clip_sweep=(1.0, 2.0),
    batch_sweep=(200, 400),
)


def digits() -> Dataset:
    return load("digits")


def spec(**changes: Any) -> Spec:
    """A private spec of eight steps."""
    return replace(make_spec(TINY, "DPVD-zCDP", Variant.AS_PRINTED, 1.0, 0), **changes)


def made_up(of: Spec, accuracy: float) -> ExperimentResult:
    """A record as a run would leave it, with an accuracy of the test's choosing."""
    return ExperimentResult(
        spec=of,
        curve=[[0.5, accuracy / 2], [1.0, accuracy]],
        accuracy=accuracy,
        examples=360,
        epsilons={} if of.epsilon is None else {"pld": of.epsilon},
        notes=[],
        plan={},
        recipe={},
        seconds=1.0,
        versions={},
    )
