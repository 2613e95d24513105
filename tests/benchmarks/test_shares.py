"""The shares of a step's time follow the code: every place they look for is visited."""

import sys

import pytest
import torch
from benchmarks.shares import PIECES, REST, shares
from torch import nn

from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy


def taking(momentum: float):
    """A function that takes one private step, with layer noise and a KL term."""
    torch.manual_seed(0)
    model = variational(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    plan = PrivacyPlan(40, 10, steps=100, noise_multiplier=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    step = PrivateStep(model, cross_entropy, plan, optimizer, kl_weight=lambda _: 1.0)
    batches = plan.batches((torch.randn(40, 6), torch.randint(3, (40,))))
    return lambda: step(next(batches))


@pytest.fixture(scope="module")
def visited() -> set[tuple[str, str]]:
    """Files and functions that two private steps come by: plain SGD, and another optimizer."""
    found: set[tuple[str, str]] = set()

    def note(frame, event, _) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_name))

    with torch.random.fork_rng():
        for momentum in (0.0, 0.9):
            step = taking(momentum)
            for _ in range(6):
                step()
            sys.setprofile(note)
            try:
                step()
            finally:
                sys.setprofile(None)
    return found


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: " ".join(piece))
def test_every_piece_is_hit(piece, visited) -> None:
    """A file or function that was renamed would silently fall to the rest."""
    _, path, function = piece
    assert any(path in file and function in ("", name) for file, name in visited)


def test_shares_add_up_to_one() -> None:
    with torch.random.fork_rng():
        found = shares(taking(0.9), 2)
    assert sum(found.values()) == pytest.approx(1)
    assert all(share > 0 for piece, share in found.items() if piece != REST)
