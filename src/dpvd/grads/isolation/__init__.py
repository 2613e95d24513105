"""Whether examples keep to themselves: watched in every step, tried out on some batches."""

from dpvd.grads.isolation.compare import NotIsolated, refuse_change
from dpvd.grads.isolation.examine import (
    Finding,
    examine,
    examine_padding,
    examine_state,
    look_around,
    why_not_mapped,
)
from dpvd.grads.isolation.randomness import streams_restored
from dpvd.grads.isolation.runs import Subject
from dpvd.grads.isolation.watch import BufferWatch, StructureWatch, digest, modules_of

__all__ = [
    "BufferWatch",
    "Finding",
    "NotIsolated",
    "StructureWatch",
    "Subject",
    "digest",
    "examine",
    "examine_padding",
    "examine_state",
    "look_around",
    "modules_of",
    "refuse_change",
    "streams_restored",
    "why_not_mapped",
]
