"""Per-example gradients as factors: the engine, the rules of the layers, the representations."""

from dpvd.grads.factored.engine import factored, find_units
from dpvd.grads.factored.represent import Materialised
from dpvd.grads.factored.rule import CannotFactor

__all__ = ["CannotFactor", "Materialised", "factored", "find_units"]
