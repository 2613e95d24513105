"""Checkpoints: one safetensors file, written whole or not at all. No pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.files import write_atomically

__all__ = ["Checkpoint", "pack_optimizer", "restore_optimizer"]

FORMAT = "dpvd-checkpoint-2"


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on: tensors by name, and plain facts.

    Guarantees:
        ``save`` replaces the old file in one move, after the new one is on disk.
        ``load`` returns what was saved, or raises.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write to ``path``, replacing what is there only when the new file is complete."""
        tensors = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in self.tensors.items()
        }
        metadata = {"format": FORMAT, "facts": json.dumps(self.facts)}
        # Their own writer leaves files of other names behind when it is killed.
        write_atomically(path, save(tensors, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint.

        Raises:
            DpvdError: if the file is missing, cut short, damaged or of another kind.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            if metadata.get("format") != FORMAT:
                raise DpvdError(f"{path} is not a checkpoint of this version of the program")
            return cls(tensors, json.loads(metadata["facts"]))
        except FileNotFoundError:
            raise DpvdError(
                f"there is no checkpoint at {path}: start the run again without resuming"
            ) from None
        except DpvdError:
            raise
        except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
            raise DpvdError(
                f"the checkpoint {path} is damaged ({error}): restore it from a copy, or start a"
                " new run"
            ) from error

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix.``, without it."""
        start = prefix + "."
        return {
            name[len(start) :]: tensor
            for name, tensor in self.tensors.items()
            if name.startswith(start)
        }


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and plain facts.

    Raises:
        DpvdError: if the state holds something else.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            name = f"{index}.{key}"
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                plain[name] = value
    kind = type(optimizer).__name__
    facts = {"kind": kind, "plain": plain, "groups": state["param_groups"]}
    try:
        json.dumps(facts)
    except TypeError as problem:
        raise DpvdError(
            f"the state of {kind} cannot be written to a checkpoint ({problem}): keep tensors and "
            "plain numbers in it, or train without a folder"
        ) from None
    return tensors, facts


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Put back what ``pack_optimizer`` gave.

    Raises:
        DpvdError: if it is of an optimizer of another kind, or with other groups.
    """
    kind = type(optimizer).__name__
    saved_kind = facts.get("kind", kind)  # files of an earlier version do not say
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved_sizes = [len(group["params"]) for group in facts["groups"]]
    if saved_kind != kind or saved_sizes != sizes:
        raise DpvdError(
            f"the run was started with {saved_kind} on groups of {saved_sizes} parameters, not "
            f"with {kind} on {sizes}: resume with that one"
        )
    state: dict[int, dict[str, Any]] = {}
    values = {**tensors, **facts["plain"]}
    for name, value in values.items():
        index, key = name.split(".", 1)
        entries = state.setdefault(int(index), {})
        entries[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": facts["groups"]})
