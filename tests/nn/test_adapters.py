"""Variational LoRA adapters and heads of models from public libraries."""

import math
import warnings

import pytest
import torch
from torch import nn

import dpvd
import dpvd.nn as dn
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

WORDS = 30
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3}


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=8,
        n_embd=12,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
        **TOKENS,
    )
    return transformers.GPT2ForSequenceClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
        **TOKENS,
    )
    return transformers.BertForSequenceClassification(config)


MODELS = {"gpt2": (gpt2, ["c_attn"], "score"), "bert": (bert, ["query", "value"], "classifier")}


def adapted(name: str) -> nn.Module:
    """With adapters that are no longer zero: a zero B would hide A's gradients."""
    make, targets, _ = MODELS[name]
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries about themselves
        torch.manual_seed(0)
        config = peft.LoraConfig(
            task_type="SEQ_CLS", r=2, target_modules=targets, fan_in_fan_out=name == "gpt2"
        )
        model = peft.get_peft_model(make(), config).double()
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                nn.init.normal_(parameter, std=0.3)
    return model


def texts(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(3, WORDS, (count, 8), generator=generator)
    return words, torch.randint(3, (count,), generator=generator)


def loss_fn(model: nn.Module, words: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(input_ids=words).logits, label, reduction="none")


SCALES = {
    "privacy": {"rates": "layer", "learned": False},
    "learned": {"log_sigma2": -3.0, "prior": "gaussian"},
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", MODELS)
def test_norms_and_sums_are_those_of_a_loop_over_examples(name, scale):
    model = dn.variational(adapted(name), only=("lora", MODELS[name][2]), **SCALES[scale])
    if scale == "privacy":
        assert dn.set_scale(model, 0.1) == len(model.conversion.converted)
    found = []
    for engine in ("auto", "loop"):
        with dn.noise_from(torch.Generator().manual_seed(2)):
            clipping = Clipping("flat", 0.5)
            found.append(clipped_grad(model, loss_fn, texts(), clipping=clipping, engine=engine))
    ours, truth = found
    torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-12)
    assert ours.grads.keys() == truth.grads.keys()
    for key, gradient in truth.grads.items():
        torch.testing.assert_close(ours.grads[key], gradient, rtol=1e-9, atol=1e-11)
    assert truth.norms.min() > 0


@pytest.mark.parametrize("name", MODELS)
def test_without_noise_it_is_the_model_it_was(name):
    plain = adapted(name).eval()
    model = dn.variational(plain, only=("lora", MODELS[name][2]))
    words, _ = texts()
    assert torch.equal(model(input_ids=words).logits, plain(input_ids=words).logits)
    trained = {key for key, p in plain.named_parameters() if p.requires_grad}
    scales = {f"{key.rsplit('.', 1)[0]}.log_sigma2" for key in trained if key.endswith(".weight")}
    assert {key for key, p in model.named_parameters() if p.requires_grad} == trained | scales
    assert all(kind != "AdditiveLinear" for _, kind in model.conversion.frozen)


def test_steps_move_adapters_and_head_alone_and_are_accounted():
    model = dn.variational(adapted("gpt2"), only=("lora", "score"), **SCALES["privacy"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plan = dpvd.PrivacyPlan(examples=6, batch_size=6, steps=2, noise_multiplier=2.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    step = dpvd.PrivateStep(model, loss_fn, plan, torch.optim.SGD(trained, lr=0.5))
    for batch in plan.batches(texts()):
        step(batch)
    assert step.zeta == pytest.approx(0.5 * 2.0 / 6, rel=2e-3)
    moved = {
        key for key, value in model.state_dict().items() if not torch.equal(value, before[key])
    }
    assert moved
    assert all("lora" in key or "score.modules_to_save" in key for key in moved)
    for module in model.modules():
        if isinstance(module, dn.AdditiveLinear):
            assert module.log_sigma2.exp().sqrt().item() == pytest.approx(step.zeta, rel=1e-5)
    assert step.guarantee(1e-5).steps == 2


def test_predictions_vary_with_the_adapters():
    model = dn.variational(adapted("bert"), only="lora", log_sigma2=-1.0)
    words, _ = texts()
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    mean, spread = dpvd.predict_dist(model, inputs, samples=16)
    assert mean.sum(1).allclose(torch.ones(6, dtype=mean.dtype))
    assert spread.min() > 1e-4
    assert math.isfinite(dn.kl(model).item())


def test_a_pattern_that_fits_frozen_layers_only_is_refused():
    with pytest.raises(DpvdError, match="frozen=True converts them, too"):
        dn.variational(adapted("bert"), only="intermediate")


def test_adapters_are_saved_with_their_scales(tmp_path):
    model = dn.variational(adapted("gpt2"), only=("lora", "score"), log_sigma2=-2.0)
    saved = peft.get_peft_model_state_dict(model)
    assert sum(key.endswith("log_sigma2") for key in saved) == 5
