"""Specs: stable names for what determines a result."""

from dataclasses import fields, replace

import pytest

from dpvd.errors import DpvdError
from dpvd.experiments import PROTOCOLS, Spec, Variant
from dpvd.experiments.catalogue import make_spec
from tests.experiments.small import spec

PAPER = make_spec(PROTOCOLS["digits-100"], "DPVD-zCDP", Variant.AS_PRINTED, 1.0, 0)


def test_the_hash_of_a_spec_of_the_paper_never_changes() -> None:
    """Records are found by it: a change of these values orphans all that were made."""
    abadi = make_spec(PROTOCOLS["digits-100"], "Abadi et al.", Variant.AS_PRINTED, 1.0, 0)
    assert PAPER.hash == "36c1c3d9645dc9ae02d8d7604ef78440914fc83df0fb62b9e771589aac1e760e"
    assert abadi.hash == "71a4f6907995d242b4c554a3d428510f0887b53b3006dea70e7985174363925d"


def test_the_other_reading_of_the_kl_term_is_another_spec() -> None:
    """DPVD with the KL term in its gradient had this hash; its records are not those of today."""
    assert PAPER.kl_weight == 0
    other = replace(PAPER, kl_weight=1.0)
    assert other.hash == "2752b6159fdd447d940e6c240333986bf86aa391f838ab3a61525b5a114e6060"
    assert other.hash != PAPER.hash


def test_specs_survive_being_written_down() -> None:
    assert Spec.from_dict(PAPER.to_dict()) == PAPER
    assert Spec.from_dict(PAPER.to_dict()).hash == PAPER.hash


def test_whole_and_fractional_spellings_of_a_number_are_one_spec() -> None:
    assert replace(PAPER, epochs=100, clip_norm=2, epsilon=1).hash == PAPER.hash


CHANGES = {
    "protocol": "other",
    "dataset": "mnist",
    "method": "DPVD-AC",
    "variant": "tuned",
    "training": "svi",
    "accountant": "pld",
    "epsilon": 2.0,
    "delta": 1e-6,
    "hidden": 5,
    "batch_size": 7,
    "epochs": 3.0,
    "clipping": "flat",
    "clip_norm": 3.0,
    "learning_rate": 0.7,
    "gamma": 0.5,
    "schedule": "another",
    "momentum": 0.9,
    "average": 0.1,
    "prior": "none",
    "kl_weight": 0.5,
    "inputs": "others",
    "seed": 1,
    "part": "held-out",
}


def test_every_field_enters_the_hash() -> None:
    assert set(CHANGES) == {field.name for field in fields(Spec)}
    hashes = {replace(PAPER, **{name: value}).hash for name, value in CHANGES.items()}
    assert len(hashes | {PAPER.hash}) == len(CHANGES) + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"variant": "guessed"},
        {"training": "magic"},
        {"epsilon": None},
        {"accountant": None},
        {"epsilon": -1.0},
        {"delta": 0.0},
        {"hidden": 0},
        {"clipping": "sometimes"},
    ],
)
def test_specs_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DpvdError):
        spec(**changes)


def test_what_is_no_spec_is_refused() -> None:
    incomplete = PAPER.to_dict()
    del incomplete["seed"]
    with pytest.raises(DpvdError, match="seed"):
        Spec.from_dict(incomplete)
