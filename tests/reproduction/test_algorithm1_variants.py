"""The switches of Algorithm 1 do what they say, and its sound setting is what the package does."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from reproduction.algorithm1_variants import KL, Interpretation, gradients, learning_rates, train
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.experiments.prepare import prepare
from dpvd.grads import clipped_grad
from dpvd.nn.kl_term.divergences import exact_kl
from dpvd.runs import PreparedRun
from tests.experiments.small import digits, spec

PLAIN = Interpretation(learning_rate=0.5, gamma=1.0, clip_norm=0.3)


@pytest.fixture(autouse=True)
def _without_autograd():
    with torch.no_grad():
        yield


def run(steps: int = 8) -> PreparedRun:
    """Steps on batches of about 200."""
    made = prepare(spec(), digits())
    return replace(made, plan=replace(made.plan, steps=steps))


def batches(made: PreparedRun) -> Iterator[tuple[Tensor, Tensor]]:
    return made.plan.batches((made.network.inputs(made.dataset.train_x), made.dataset.train_y))


def initial(made: PreparedRun) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in made.network.build(0).parameters()]


def moved(made: PreparedRun, interpretation: Interpretation) -> list[Tensor]:
    """By how much training moved the weights."""
    return [
        after - before
        for before, after in zip(initial(made), train(made, interpretation).weights, strict=True)
    ]


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def test_without_noise_it_takes_steps_on_the_packages_clipped_sums() -> None:
    made = run()
    model = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    for parameter, value in zip(model.parameters(), initial(made), strict=True):
        parameter.copy_(value)
    clipped = 0
    for batch, rate in zip(batches(made), learning_rates(made, PLAIN), strict=True):
        with torch.enable_grad():
            found = clipped_grad(
                model, loss_fn, batch, clipping=replace(made.plan.clipping, clip_norm=0.3)
            )
        clipped += (found.norms > 0.3).sum().item()
        for parameter, total in zip(model.parameters(), found.grads.values(), strict=True):
            parameter.sub_(rate / 200 * total)
    assert clipped > 1000
    for weight, parameter in zip(train(made, PLAIN).weights, model.parameters(), strict=True):
        assert torch.allclose(weight, parameter, atol=1e-5)


def test_learning_rates_are_those_of_the_paper() -> None:
    rates = list(learning_rates(run(steps=15), Interpretation(0.5, 1.0)))
    assert rates == [0.5] * 7 + [0.25] * 7 + [0.5 / 3]


def test_a_kl_term_inside_the_clip_is_part_of_every_gradient() -> None:
    made = run(steps=3)
    interpretation = replace(PLAIN, learning_rate=5.0, sum_noise=8.0, carried=False, kl=KL.INSIDE)
    weights = initial(made)
    for batch in batches(made):
        totals = [torch.zeros_like(weight) for weight in weights]
        for x, y in zip(*batch, strict=True):
            found = gradient_of_the_bound(
                weights, x, y, zeta=5.0 * 8.0 / 200, examples=made.plan.examples
            )
            for layer in (0, 2):
                norm = torch.cat([part.flatten() for part in found[layer : layer + 2]]).norm()
                for which in (layer, layer + 1):
                    totals[which] += (0.3 / norm).clamp_max(1.0) * found[which]
        weights = [
            weight - 5.0 / 200 * total for weight, total in zip(weights, totals, strict=True)
        ]
    for ours, expected in zip(train(made, interpretation).weights, weights, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4)
        assert (ours - expected).norm() < 1e-3 * expected.norm()


def gradient_of_the_bound(
    weights: list[Tensor], x: Tensor, y: Tensor, zeta: float, examples: int
) -> list[Tensor]:
    """Of one example's loss and its share of the KL term, by autograd."""
    watched = [weight.detach().clone().requires_grad_() for weight in weights]
    with torch.enable_grad():
        hidden = F.linear(x, watched[0], watched[1]).relu()
        loss = F.cross_entropy(F.linear(hidden, watched[2], watched[3]), y)
        # In float64, and a little off 0: log α is infinite there, and the slope 0.
        kl = sum(
            exact_kl((zeta**2 / (w.double().square() + 1e-20)).log()).sum() for w in watched[::2]
        )
        return list(torch.autograd.grad(loss + kl / examples, watched))


def test_a_kl_term_outside_the_clip_is_added_as_it_is() -> None:
    made = run(steps=1)
    apart = replace(PLAIN, sum_noise=8.0, carried=False)
    with_kl, without = (moved(made, replace(apart, kl=kl)) for kl in (KL.OUTSIDE, KL.NONE))
    weight = initial(made)[0].requires_grad_()
    zeta = 0.5 * 8.0 / 200
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(exact_kl((zeta**2 / weight.square()).log()).sum(), weight)
    assert torch.allclose(with_kl[0] - without[0], -0.5 / made.plan.examples * slope, atol=1e-7)
    assert torch.equal(with_kl[1], without[1])  # biases have no prior


@pytest.mark.parametrize(
    ("noise", "std"),
    [({"sum_noise": 8.0}, 0.5 * 8.0 / 200), ({"weight_noise": 8.0}, 8.0)],
    ids=["sum", "weights"],
)
def test_noise_has_the_scale_of_the_reading(noise: dict[str, float], std: float) -> None:
    made = run(steps=1)
    noisy, clean = moved(made, replace(PLAIN, **noise)), moved(made, PLAIN)
    found = (noisy[0] - clean[0]).std().item()
    assert 0.85 * std < found < 1.15 * std  # 256 weights: an error of 4.4 %


def test_what_is_not_carried_leaves_the_steps_alone() -> None:
    made = run()
    carried, apart = (
        replace(PLAIN, weight_noise=8.0, carried=carried) for carried in (True, False)
    )
    for change, clean in zip(moved(made, apart), moved(made, PLAIN), strict=True):
        assert torch.equal(change, clean)
    assert not torch.equal(moved(made, carried)[0], moved(made, PLAIN)[0])
    assert (
        train(made, apart).accuracy != train(made, PLAIN).accuracy
    )  # but it is in what is released


def test_sampling_is_centred_and_has_variance_from_every_weight() -> None:
    weights, generator = initial(run()), torch.Generator().manual_seed(0)
    x, y = (part[:1].expand(20_000, *part.shape[1:]) for part in next(batches(run())))
    (inputs, _), (hidden, _) = gradients(weights, x, y, 0.7, generator)
    active = hidden[:, F.linear(x[0], weights[0], weights[1]).argmax()]
    assert torch.equal(inputs, x)
    clean = F.linear(x[0], weights[0], weights[1]).max()
    above = (active > clean).float().mean().item()
    assert 0.48 < above < 0.52
    spread = (active[active > clean] - clean).square().mean().sqrt().item()
    assert spread == pytest.approx(0.7 * x[0].norm().item(), rel=0.05)


def test_an_example_left_out_is_left_out_of_every_batch() -> None:
    made = run(steps=1)
    data = (made.dataset.train_x, torch.arange(made.plan.examples))
    (_, drawn) = next(iter(made.plan.batches(data)))
    absent = next(row for row in range(made.plan.examples) if row not in drawn)
    whole = train(made, PLAIN).weights
    assert all(map(torch.equal, whole, train(made, PLAIN, without=absent).weights))
    assert not all(map(torch.equal, whole, train(made, PLAIN, without=int(drawn[0])).weights))
