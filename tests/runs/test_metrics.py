"""Metrics of a trained model, against cases computed by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import variational
from dpvd.runs import metrics, predict_dist

# Two examples at confidence 0.95, one of them wrong; two at 0.65, both right.
PROBABILITIES = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.65, 0.35], [0.35, 0.65]])
LABELS = torch.tensor([0, 1, 0, 1])


@pytest.fixture
def measured():
    return metrics.test_metrics(PROBABILITIES, LABELS, samples=32)


def test_accuracy_and_loss(measured):
    assert measured["accuracy"] == 0.75
    assert measured["loss"] == pytest.approx(
        -(math.log(0.95) + math.log(0.05) + 2 * math.log(0.65)) / 4, rel=1e-6
    )
    assert measured["samples"] == 32


def test_reliability_has_one_entry_for_each_bin_with_examples(measured):
    low, high = measured["reliability"]
    assert (low["count"], low["accuracy"]) == (2, 1.0)
    assert (high["count"], high["accuracy"]) == (2, 0.5)
    assert low["confidence"] == pytest.approx(0.65)
    assert high["confidence"] == pytest.approx(0.95)


def test_calibration_error_is_the_mean_gap(measured):
    assert measured["calibration_error"] == pytest.approx((2 * 0.35 + 2 * 0.45) / 4)


def test_confusion_counts_true_by_predicted(measured):
    assert measured["confusion"] == [[2, 0], [1, 1]]


def test_full_confidence_is_in_the_last_bin():
    sure = metrics.test_metrics(torch.eye(3), torch.arange(3), samples=1)
    assert [entry["count"] for entry in sure["reliability"]] == [3]
    assert sure["calibration_error"] == 0


def test_a_certain_error_has_a_finite_loss():
    wrong = metrics.test_metrics(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), samples=1)
    assert math.isfinite(wrong["loss"])
    assert wrong["loss"] > 20


@pytest.mark.parametrize(("right", "count"), [(1, 10), (5, 10), (320, 360), (9_999, 10_000)])
def test_ends_of_the_interval_lie_1_96_standard_errors_from_the_share(right, count):
    # The Wilson interval is where |share - p| = z sqrt(p (1 - p) / n).
    share = right / count
    for end in metrics.wilson_interval(right, count):
        assert abs(share - end) / math.sqrt(end * (1 - end) / count) == pytest.approx(
            1.959964, rel=1e-5
        )


def test_the_interval_stays_within_0_and_1():
    low, high = metrics.wilson_interval(0, 20)
    assert low == pytest.approx(0, abs=1e-15)
    assert high == pytest.approx(1.959964**2 / (20 + 1.959964**2), rel=1e-5)
    low, high = metrics.wilson_interval(20, 20)
    assert high == pytest.approx(1)
    assert high <= 1


def test_predictions_of_point_weights_have_no_spread(generator):
    model = nn.Linear(4, 3)
    x = torch.randn(5, 4, generator=generator)
    mean, spread = predict_dist(model, x)
    torch.testing.assert_close(mean, model(x).softmax(1).detach())
    assert spread.abs().max() == 0


def test_predictions_of_random_weights_average_over_draws(generator):
    model = variational(nn.Sequential(nn.Linear(4, 3)), "gaussian", rate=0.5)
    x = torch.randn(2100, 4, generator=generator)  # more than one chunk
    mean, spread = predict_dist(model, x, samples=16)
    assert mean.shape == spread.shape == (2100, 3)
    torch.testing.assert_close(mean.sum(1), torch.ones(2100))
    assert (spread > 0).all()
    again, _ = predict_dist(model, x, samples=16)
    assert torch.equal(mean, again)  # the default draws follow from a fixed seed
    other, _ = predict_dist(model, x, samples=16, generator=generator)
    assert not torch.equal(mean, other)


def test_histograms_count_every_weight_within_the_range():
    model = variational(nn.Sequential(nn.Linear(4, 3)), "additive")
    (histogram,) = metrics.alpha_histograms(model).values()
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1 == 33
    assert sum(histogram["counts"]) == 12


class Keywords(nn.Module):
    """Called as models of transformers are, and returning what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, *, values, mask):
        return SimpleNamespace(logits=self.head(values * mask), loss=None)


def test_a_model_may_be_called_with_keywords_and_return_an_object():
    x = torch.randn(5000, 4, generator=torch.Generator().manual_seed(0))
    model = variational(Keywords(), "gaussian", rate=0.5)
    mean, spread = predict_dist(model, {"values": x, "mask": torch.ones(5000, 1)}, samples=8)
    same, _ = predict_dist(model.head, x, samples=8)
    assert torch.equal(mean, same)
    assert mean.shape == spread.shape == (5000, 3)
    assert spread.min() > 0


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"values": torch.ones(3, 4), "mask": torch.ones(2, 1)}, "{'values': 3, 'mask': 2}"),
        ({"values": torch.ones(3, 4), "mask": None}, "'mask': None"),
        ({}, "numbers of examples are {}"),
    ],
)
def test_inputs_of_other_kinds_are_refused(inputs, words):
    with pytest.raises(DpvdError, match=words):
        predict_dist(Keywords(), inputs)


def test_a_model_without_logits_is_refused():
    with pytest.raises(DpvdError, match="Identity returned SimpleNamespace"):
        predict_dist(Identity(), torch.ones(3, 4))


class Identity(nn.Module):
    def forward(self, x):
        return SimpleNamespace(hidden=x)
