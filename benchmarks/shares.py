"""Where the time of a private step goes: noise, norms, weighted sums, update, and the rest."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from benchmarks.workloads import Step

__all__ = ["PIECES", "REST", "shares"]

PIECES: tuple[tuple[str, str, str], ...] = (
    ("noise", "dpvd/mechanisms/", ""),
    ("layer noise", "dpvd/nn/noise.py", "draw"),
    ("norms", "dpvd/grads/factored/represent.py", "norms"),
    ("norms", "dpvd/grads/per_example.py", "clip"),
    ("norms", "dpvd/grads/clipping.py", "factors"),
    ("weighted sums", "dpvd/grads/factored/represent.py", "add_sum"),
    ("update", "dpvd/training/update.py", ""),
    ("update", "torch/optim/", ""),
    ("prior", "dpvd/nn/kl_term/gradient.py", ""),
    ("forward", "torch/nn/modules/module.py", "_call_impl"),
    ("backward", "torch/autograd/__init__.py", "grad"),
)
"""Piece, part of the path of a file, name of a function in it (all of them if empty).

`tests/benchmarks/test_shares.py` fails if a step never comes by one of them.
"""

CLOSED = ("noise", "layer noise", "prior")
"""Pieces that keep what they call: the prior has a backward pass of its own."""

REST = "rest"
_WARM_UP = 3


def shares(step: Step, steps: int) -> dict[str, float]:
    """The share of each piece in the time of a step; they add up to 1.

    Python calls back at every call and return of a function; time is charged to the innermost
    function that is one of ``PIECES`` (the outermost of the ``CLOSED`` ones). That costs well below
    a microsecond for each call, some per cent of the shortest step, which fall on the pieces with
    many calls.

    Args:
        step: takes one step.
        steps: how many to average over.
    """
    for _ in range(_WARM_UP):
        step()
    with _watch() as spent:
        for _ in range(steps):
            step()
    total = sum(spent.values())
    return {
        piece: spent.get(piece, 0.0) / total
        for piece in [*dict.fromkeys(name for name, _, _ in PIECES), REST]
    }


@contextmanager
def _watch() -> Iterator[dict[str, float]]:
    """Seconds by piece of what runs inside, in this thread."""
    spent: dict[str, float] = defaultdict(float)
    known: dict[CodeType, str | None] = {}
    stack = [REST]
    last = time.perf_counter()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last
        if event not in ("call", "return"):
            return
        now = time.perf_counter()
        spent[stack[-1]] += now - last
        last = now
        if event == "call":
            if frame.f_code not in known:
                known[frame.f_code] = _piece(frame.f_code)
            stack.append(stack[-1] if stack[-1] in CLOSED else known[frame.f_code] or stack[-1])
        elif len(stack) > 1:  # the first return is that of the function that began to watch
            stack.pop()

    sys.setprofile(on_event)
    try:
        yield spent
    finally:
        sys.setprofile(None)


def _piece(code: CodeType) -> str | None:
    for piece, path, function in PIECES:
        if path in code.co_filename and function in ("", code.co_name):
            return piece
    return None
