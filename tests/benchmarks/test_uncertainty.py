"""The measures of probabilities that systems are compared by, and what was noted of them."""

import json

import pytest
import torch
from benchmarks.uncertainty import RESULTS, WAYS, area, measures, private_temperature


def test_the_area_is_the_share_of_pairs_in_order_and_ties_count_half():
    wrong = torch.tensor([True, True, False, False])
    assert area(torch.tensor([0.9, 0.2, 0.1, 0.5]), wrong) == pytest.approx(3 / 4)
    assert area(torch.ones(4), wrong) == pytest.approx(1 / 2)


def test_probabilities_that_classes_are_drawn_from_have_no_calibration_error(generator):
    probabilities = (2 * torch.randn(20000, 3, generator=generator)).softmax(1)
    y = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
    right = measures(probabilities, None, y)
    bold = measures((3 * probabilities.log()).softmax(1), None, y)
    assert right["ece"] < 0.02 < 0.08 < bold["ece"]
    assert right["nll"] < bold["nll"]
    assert right["brier"] < bold["brier"]
    assert right["accuracy"] == bold["accuracy"]


def test_a_private_temperature_finds_what_logits_were_divided_by(generator):
    logits = 2 * torch.randn(20000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    assert private_temperature(logits / 2, y) == pytest.approx(2, rel=0.1)
    assert private_temperature(logits * 3, y) == pytest.approx(1 / 3, rel=0.1)


def test_every_way_was_measured_with_the_same_seeds_at_the_same_budget():
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    for data in {row["data"] for row in rows}:
        seeds = {
            way: sorted(r["seed"] for r in rows if r["data"] == data and r["way"] == way)
            for way in WAYS
        }
        assert len({tuple(found) for found in seeds.values()}) == 1, data
    assert {(row["epsilon"], row["delta"]) for row in rows} == {(1.0, 1e-5)}
