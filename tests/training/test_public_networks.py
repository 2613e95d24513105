"""Networks from public libraries train privately: all parameters, and adapters alone."""

import pytest
import torch

from dpvd import Clipping, PrivacyPlan, PrivateStep
from dpvd.grads import Engine
from tests.grads.public_models import MODELS, WITH_LORA, build, make_examples, with_adapters

pytest.importorskip("peft")

COUNT = 12


def mean_loss(model, loss_fn, data):
    model.eval()
    with torch.no_grad():
        found = float(loss_fn(model, *data).mean())
    model.train()
    return found


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "LoRA"])
@pytest.mark.parametrize("name", WITH_LORA)
def test_a_public_network_learns_in_two_private_steps(name, adapted, generator):
    _, loss_fn, _ = MODELS[name]
    model = with_adapters(name, build(name)) if adapted else build(name)
    model = model.float()
    data = make_examples(name, COUNT, generator)
    data = tuple(part.float() if part.is_floating_point() else part for part in data)
    plan = PrivacyPlan(
        examples=COUNT,
        batch_size=COUNT,
        steps=2,
        noise_multiplier=0.001,
        clipping=Clipping("automatic", clip_norm=1.0),
    )
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    first_loss = mean_loss(model, loss_fn, data)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    step = PrivateStep(model, loss_fn, plan, torch.optim.AdamW(trained, lr=1e-2))
    for batch in plan.batches(data):
        step(batch)
    assert step.taken == 2
    assert step.clipper.engine is Engine.FACTORED, step.clipper.passed_over
    for key, parameter in model.named_parameters():
        moved = not torch.equal(before[key], parameter)
        assert moved is parameter.requires_grad, key
    assert mean_loss(model, loss_fn, data) < first_loss
