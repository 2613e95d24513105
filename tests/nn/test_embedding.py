"""What is special about embeddings with noise: padding, and what torch's layer offers that they do
not.
"""

import pytest
import torch

import dpvd.nn as dn
from tests.nn.cases import normal


def test_padding_has_no_noise_and_no_kl_term(generator):
    layer = dn.AdditiveEmbedding(5, 3, padding_idx=1, log_sigma2=-1.0, dtype=torch.float64)
    out = layer(torch.tensor([[1, 2], [1, 1]]))
    assert torch.equal(out[1], layer.weight[1].expand(2, 3))
    assert not torch.equal(out[0, 1], layer.weight[2])
    layer.kl().backward()
    assert not layer.weight.grad[1].any()
    assert not layer.log_sigma2.grad[1].any()
    assert layer.weight.grad[2].all()


def test_the_same_word_gets_new_noise_at_every_place():
    layer = dn.AdditiveEmbedding(5, 3, log_sigma2=0.0)
    out = layer(torch.full((4, 6), 2))
    assert len(out.flatten(0, 1).unique(dim=0)) == 24


def test_only_rows_that_are_looked_up_get_gradients(generator):
    layer = dn.AdditiveEmbedding(5, 3, log_sigma2=-1.0, dtype=torch.float64)
    (layer(torch.tensor([[0, 3]])) * normal((1, 2, 3), generator)).sum().backward()
    assert layer.log_sigma2.grad.any(1).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("option", ["max_norm", "scale_grad_by_freq", "sparse"])
def test_options_that_cannot_be_private_are_not_offered(option):
    with pytest.raises(TypeError, match=option):
        dn.AdditiveEmbedding(5, 3, **{option: True})
