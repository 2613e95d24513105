"""The gradient rule of each layer type. The only package that knows layers and gradient algebra.

A rule is given the layer, one recorded call of it and the gradient g that arrives at its output,
and returns the terms of each parameter's gradient by the parameter's name in the layer
(`dpvd.grads.factored.rule` has the types). It is looked up by exact type: a subclass may compute
something else. No term may share memory with a parameter.

To add a layer, add a rule to one of the modules here and a row to the conformance tests.
"""

from torch import nn

from dpvd.grads.factored.rule import Rule
from dpvd.grads.factored.rules.attention import RULES as ATTENTION
from dpvd.grads.factored.rules.conv import RULES as CONV
from dpvd.grads.factored.rules.dense import RULES as DENSE
from dpvd.grads.factored.rules.embedding import RULES as EMBEDDING
from dpvd.grads.factored.rules.norm import RULES as NORM
from dpvd.grads.factored.rules.recurrent import RULES as RECURRENT

__all__ = ["HALF_PRECISION", "RULES"]

RULES: dict[type[nn.Module], Rule] = {
    **DENSE,
    **CONV,
    **EMBEDDING,
    **NORM,
    **RECURRENT,
    **ATTENTION,
}

HALF_PRECISION: frozenset[type[nn.Module]] = frozenset(
    kind for kind in (*DENSE, *CONV, *EMBEDDING, *NORM) if kind.__module__.startswith("torch.")
)
"""Layers whose rules return terms of factors in half precision just as they arrived."""
