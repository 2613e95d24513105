"""Variational layers: a distribution over every weight, sampled by local reparameterisation.

The layers know nothing of privacy. Noise is drawn per example from a source the caller controls.
"""

from dpvd.nn.attention.layers import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
from dpvd.nn.conv import (
    AdditiveConv1d,
    AdditiveConv2d,
    AdditiveConv3d,
    AdditiveConvTranspose2d,
    MultiplicativeConv1d,
    MultiplicativeConv2d,
    MultiplicativeConv3d,
)
from dpvd.nn.convert import Conversion, variational
from dpvd.nn.counterparts import LayerName
from dpvd.nn.dropout import BinaryDropoutLinear, GaussianDropoutLinear
from dpvd.nn.embedding import AdditiveEmbedding
from dpvd.nn.kl_term.gradient import KLGradient, kl_gradients
from dpvd.nn.kl_term.priors import ARD, Approximation, Gaussian, LogUniform, Prior, prior_from
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.linear import AdditiveLinear, MultiplicativeLinear
from dpvd.nn.model import (
    LayerSparsity,
    Sparsity,
    kl,
    log_alpha,
    prune,
    set_scale,
    sparsity,
    tied_layers,
)
from dpvd.nn.noise import (
    VARIANCE_FLOOR,
    NoiseTape,
    draw,
    gaussian_sample,
    is_sampling,
    noise_from,
    noise_std,
    sampling,
    tape_from,
)
from dpvd.nn.noise_families import AdditiveNoise
from dpvd.nn.pruning.compress import Compression, LayerSize, compress
from dpvd.nn.pruning.export import SparseState, sparse_state
from dpvd.nn.recurrent.layers import AdditiveGRU, AdditiveLSTM, AdditiveRNN
from dpvd.nn.transformer import VariationalTransformerEncoderLayer

__all__ = [
    "ARD",
    "VARIANCE_FLOOR",
    "AdditiveConv1d",
    "AdditiveConv2d",
    "AdditiveConv3d",
    "AdditiveConvTranspose2d",
    "AdditiveEmbedding",
    "AdditiveGRU",
    "AdditiveLSTM",
    "AdditiveLinear",
    "AdditiveMultiheadAttention",
    "AdditiveNoise",
    "AdditiveRNN",
    "Approximation",
    "BinaryDropoutLinear",
    "Compression",
    "Conversion",
    "Gaussian",
    "GaussianDropoutLinear",
    "KLGradient",
    "LayerName",
    "LayerSize",
    "LayerSparsity",
    "LogUniform",
    "MultiplicativeConv1d",
    "MultiplicativeConv2d",
    "MultiplicativeConv3d",
    "MultiplicativeLinear",
    "MultiplicativeMultiheadAttention",
    "NoiseTape",
    "Prior",
    "Rates",
    "SparseState",
    "Sparsity",
    "VariationalLayer",
    "VariationalTransformerEncoderLayer",
    "compress",
    "draw",
    "gaussian_sample",
    "is_sampling",
    "kl",
    "kl_gradients",
    "log_alpha",
    "noise_from",
    "noise_std",
    "prior_from",
    "prune",
    "sampling",
    "set_scale",
    "sparse_state",
    "sparsity",
    "tape_from",
    "tied_layers",
    "variational",
]
