"""The network of a table: its prior and start, who counts, what it learns that a line cannot."""

import math

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, clipped_grad
from dpvd.nn import Gaussian, kl
from dpvd.statistics import Moments
from dpvd.tabular import TableModel, TableNetwork, choose, choose_plain, fit_ordinary, fit_table
from dpvd.tabular.fit import _loss
from dpvd.tabular.linear import whitened_start
from dpvd.tabular.rows import rows_by_person
from tests.tabular.tables import area_under_curve, make_table


def crossed(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes by the sign of a product of two columns: of no column by itself."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=source)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def test_the_prior_of_the_linear_path_is_around_the_statistics():
    network = TableNetwork(3, 2, 4, 1, prior_std=0.5)
    network.start.copy_(torch.tensor([[3.0, -2.0, 1.0]]))
    network.linear.weight.data.fill_(0.25)
    network.set_posterior(0.5)
    rows = torch.tensor([[0.6, 0.0, 0.8, 1.0, 0.0]])
    # At the start the network says what the statistics say, moved by the deviation.
    assert network.eval()(rows).item() == pytest.approx(0.6 * 3.25 + 0.8 * 1.25)
    own = Gaussian(0.5)
    means = torch.cat([weight.flatten() for weight in network.parameters()])
    by_hand = own.kl(means, torch.tensor(2 * math.log(0.5))).sum()
    assert kl(network).item() == pytest.approx(by_hand.item())
    assert by_hand.item() == pytest.approx(0.5 * 3 * 0.25, rel=1e-5)


def test_the_start_is_the_regression_on_whitened_rows():
    source = torch.Generator().manual_seed(0)
    mixed = torch.randn(4, 4, generator=source, dtype=torch.float64)
    u = torch.randn(200_000, 4, generator=source, dtype=torch.float64) @ mixed
    t = 0.1 * u @ torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)[:, None]
    moments = Moments(u.T @ u / len(u), 1e-9, u.T @ t / len(u), 1e-9)
    start = whitened_start(moments, 1.0, is_regression=True)
    values, vectors = torch.linalg.eigh(moments.second)
    white = u @ (vectors * values.rsqrt()) @ vectors.T
    # Rows are later scaled to length 1; here all are taken as √4 long.
    torch.testing.assert_close(white @ start / 2, t, atol=1e-5, rtol=1e-5)


def test_noise_in_the_products_takes_the_start_away():
    moments = Moments(torch.eye(3).double(), 0.01, torch.full((3, 1), 0.1).double(), 10.0)
    start = whitened_start(moments, 1.0, is_regression=False)
    assert start.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("hidden", "points"), [(6, False), (6, True), (0, False)], ids=["sampled", "points", "linear"]
)
def test_a_person_with_ten_rows_adds_no_more_than_the_clip_norm(hidden, points):
    """By loss, head and engine of a fit, whatever the rows; one example would get the oracle."""
    source = torch.Generator().manual_seed(1)
    model = TableModel(4, 2, whitened=True, hidden=hidden, points=points)
    for weight in model.head.parameters():
        weight.data.normal_(0, 3.0, generator=source)
    if hidden and not points:
        model.head.set_posterior(0.1)
    x = 1e3 * torch.randn(10, 4, generator=source)
    targets = torch.ones(10, 1)
    numbers = rows_by_person(torch.zeros(10, dtype=torch.int64), 10, 1, 12)
    loss = _loss(model, model.inputs(x), targets)
    clipping = Clipping(ClippingMode.FLAT, 0.01)
    found = clipped_grad(model.head, loss, (numbers,), clipping=clipping, engine="factored")
    length = math.sqrt(sum(part.square().sum().item() for part in found.grads.values()))
    assert 0.0099 < length <= 0.01 * (1 + 1e-5)


def test_a_network_learns_what_columns_say_together():
    x, y = crossed(6000, 0)
    test_x, test_y = crossed(2000, 1)
    arguments = {"classes": 2, "epsilon": 8.0, "delta": 1e-5, "noise": "seeded", "seed": 1}
    recipe = choose(6000, 4, 8.0, 1e-5, classes=2)
    assert recipe.method == "network"
    found = fit_table(x, y, **arguments)
    assert found.recipe == recipe
    told = found.model.predict(test_x)
    assert area_under_curve(told.probabilities[:, 1], test_y) > 0.85
    linear = choose(6000, 4, 8.0, 1e-5, classes=2, network="linear")
    line = fit_table(x, y, recipe=linear, **arguments).model.predict(test_x)
    assert area_under_curve(line.probabilities[:, 1], test_y) < 0.6


def test_a_network_without_privacy_learns_it_too():
    x, y = crossed(3000, 0)
    test_x, test_y = crossed(1000, 1)
    model = fit_ordinary(x, y, classes=2, hidden=16)
    told = model.predict(test_x).probabilities[:, 1]
    assert area_under_curve(told, test_y) > 0.95
    product = x[:, 0] * x[:, 1]
    numbers = fit_ordinary(x, product, classes=None, target_range=(-9.0, 9.0), hidden=16)
    error = (numbers.predict(test_x).mean - test_x[:, 0] * test_x[:, 1]).square().mean().sqrt()
    assert error < 0.75  # 1 without learning


def test_hidden_units_do_not_see_hat_functions():
    table = make_table(600, 5)
    hats = torch.tensor([False, True, False, True, False])
    recipe = choose(600, 5, 4.0, 1e-5, classes=2, network="mlp", hidden=3)
    found = fit_table(
        table.x,
        table.classes,
        classes=2,
        epsilon=4.0,
        delta=1e-5,
        noise="seeded",
        seed=1,
        recipe=recipe,
        hats=hats,
    )
    assert found.model.seen.tolist() == [0, 2, 4]
    assert found.model.head.hidden.weight.shape == (3, 4)


def test_the_variance_of_scores_is_that_of_sampled_weights():
    network = TableNetwork(3, 3, 4, 1, prior_std=1.0)
    source = torch.Generator().manual_seed(2)
    for weight in network.parameters():
        weight.data.normal_(0, 0.5, generator=source)
    rows = torch.randn(1, 6, generator=source)
    network.set_posterior(0.02)
    told = network.variance(rows)
    means = [weight.detach().clone() for weight in network.parameters()]
    scores = []
    network.eval()
    for _ in range(4000):
        for weight, mean in zip(network.parameters(), means, strict=True):
            weight.data = mean + 0.02 * torch.randn(mean.shape, generator=source)
        scores.append(network(rows).item())
    assert torch.tensor(scores).var().item() == pytest.approx(told.item(), rel=0.1)


@pytest.mark.parametrize(
    ("examples", "features", "hats", "classes", "network"),
    [
        (5000, 70, 60, 2, True),  # the smallest at which it was measured
        (4000, 70, 60, 2, False),
        (5000, 70, 0, 2, False),
        (32_561, 168, 60, 2, False),
        (10_000_000, 10, 0, None, False),
    ],
)
def test_the_rule_chooses_a_network_by_public_numbers(examples, features, hats, classes, network):
    recipe = choose(examples, features, 1.0, 1e-5, classes=classes, hats=hats)
    assert (recipe.method == "network") is network
    asked = choose(examples, features, 1.0, 1e-5, classes=classes, hats=hats, network="mlp")
    assert asked.hidden == 16


def test_what_makes_no_sense_of_a_network_is_refused():
    with pytest.raises(DpvdError, match="a linear model has none"):
        choose(100, 5, 1.0, 1e-5, classes=2, network="linear", hidden=4)
    with pytest.raises(DpvdError, match="hats must be some"):
        choose(100, 5, 1.0, 1e-5, classes=2, hats=5)
    with pytest.raises(DpvdError, match="need whitened rows"):
        TableModel(4, 2, whitened=False, hidden=3)
    with pytest.raises(DpvdError, match="network must be"):
        choose(100, 5, 1.0, 1e-5, classes=2, network="cnn")
    assert choose_plain(100, 1.0, 1e-5, classes=2).points
