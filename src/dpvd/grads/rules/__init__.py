"""For each layer type, its per-example gradients as terms. The only package that knows layers and
gradient algebra.

A rule gets the layer, one recorded call of it and the gradient g that arrives at its output, and
returns the terms of each parameter's gradient by the parameter's name in the layer. It is looked up
by exact type: a subclass may compute something else.

To add a layer, add a rule to one of the modules here and a row to the conformance tests.
"""

from torch import nn

from dpvd.grads.rules.attention import RULES as ATTENTION
from dpvd.grads.rules.common import Rule
from dpvd.grads.rules.conv import RULES as CONV
from dpvd.grads.rules.dense import RULES as DENSE
from dpvd.grads.rules.embedding import RULES as EMBEDDING
from dpvd.grads.rules.norm import RULES as NORM
from dpvd.grads.rules.recurrent import RULES as RECURRENT

__all__ = ["RULES"]

RULES: dict[type[nn.Module], Rule] = {
    **DENSE,
    **CONV,
    **EMBEDDING,
    **NORM,
    **RECURRENT,
    **ATTENTION,
}
