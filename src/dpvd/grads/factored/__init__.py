"""Per-example gradients as factors: the engine, the rules of the layers, the representations."""

from dpvd.grads.factored.engine import factored
from dpvd.grads.factored.layout import ModelLayout
from dpvd.grads.factored.represent import Materialised
from dpvd.grads.factored.rule import CannotFactor

__all__ = ["CannotFactor", "Materialised", "ModelLayout", "factored"]
