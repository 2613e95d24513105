"""Where the account of a model is stored: on its modules, and in its state dicts.

The modules of a model share one dictionary of entries, which copies of the model copy along. In a
state dict it is one line of metadata, from where ``load_state_dict`` of another model takes it up.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import wraps
from typing import Any

from torch import nn

from dpvd.plan import PrivacyPlan

__all__ = ["Entries", "attach", "entries_of", "merge", "new_entry", "shared_entries"]

_KEPT = "_dpvd_account"  # attribute of each module: runs by name, each as new_entry makes it
_LINE = "dpvd"  # name in the state dict's metadata

Entries = dict[str, dict[str, Any]]
"""By the name of a run, what is known of it."""


def new_entry(plan: PrivacyPlan, charged: int) -> dict[str, Any]:
    return {
        "plan": plan.to_dict(),
        "charged": charged,
        "other_data": False,  # declared to be on other people's data
        "beside": False,  # learnt from a module of the loss
        # by step object: how many batches it saw drawn, and how examples were isolated
        "seen": {},
        "not_covered": [],
    }


def entries_of(model: nn.Module) -> Entries:
    """What the modules of a model remember, joined."""
    found: Entries = {}
    for module in model.modules():
        merge(found, vars(module).get(_KEPT, {}))
    return found


def shared_entries(model: nn.Module) -> Entries:
    """The same, in the one object that the model's modules share from now on.

    So every step object sees all charges.
    """
    entries: Entries = vars(model).get(_KEPT, {})
    merge(entries, entries_of(model))
    return entries


def merge(into: Entries, other: Mapping[str, Any]) -> None:
    for run, entry in other.items():
        if run not in into:
            into[run] = deepcopy(dict(entry))
            continue
        known = into[run]
        known["charged"] = max(known["charged"], entry["charged"])
        known["beside"] = known["beside"] and entry["beside"]
        known["seen"].update(entry["seen"])
        for words in entry["not_covered"]:
            if words not in known["not_covered"]:
                known["not_covered"].append(words)


def attach(model: nn.Module, entries: Entries) -> None:
    """Let every module of the model remember: parts of it may be removed, and trained on."""
    for module in model.modules():
        if _KEPT not in vars(module):
            module.register_state_dict_post_hook(_write_line)  # type: ignore[no-untyped-call]
        vars(module)[_KEPT] = entries


def _write_line(module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Put the account into the metadata of a state dict: its keys stay those of the model."""
    if prefix == "" and any(entry["charged"] for entry in vars(module).get(_KEPT, {}).values()):
        metadata[_LINE] = json.dumps(vars(module)[_KEPT])


def _read_line(model: nn.Module, state: Any) -> None:
    """Take up the account that a state dict brings along."""
    metadata = getattr(state, "_metadata", None) or {}
    line = metadata.get("", {}).get(_LINE)
    if line is None:
        return
    entries = entries_of(model)
    merge(entries, json.loads(line))
    for module in model.modules():
        if _KEPT not in vars(module):
            module.register_state_dict_post_hook(_write_line)  # type: ignore[no-untyped-call]
        vars(module).setdefault(_KEPT, {})
        merge(vars(module)[_KEPT], entries)


def _watch_loading() -> None:
    """Let ``load_state_dict`` of every module read the line.

    torch has no hook for modules that were never seen.
    """
    original = nn.Module.load_state_dict

    @wraps(original)
    def load_state_dict(
        self: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        result = original(self, state_dict, *args, **kwargs)
        _read_line(self, state_dict)
        return result

    nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


_watch_loading()
