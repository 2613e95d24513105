"""What has been charged to a model, remembered with the model.

A step object lives as long as a notebook cell; the weights live longer. So the account is kept with
the modules of the model (copies of the model have it too) and stands as one line in the metadata of
its state dict, from where ``load_state_dict`` of another model takes it up. A second step object on
the same weights goes on counting.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from dp_accounting import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from dpvd.errors import DpvdError, non_negative
from dpvd.grads import digest
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee
from dpvd.training.account_store import attach, entries_of, merge, new_entry, shared_entries
from dpvd.training.statement import distinct, joint_statement

__all__ = ["Account", "charge_release", "remember"]

log = logging.getLogger("dpvd")

# attribute of the model: how its weights were when they were last accepted, a _Weights
_WRITES = "_dpvd_writes"


class Account:
    """All private steps that were ever charged to a model, by run.

    A run is one plan carried out on one model, over however many step objects, processes and
    checkpoints.

    Guarantees:
        A count never falls: entries that come together from several places (copies, state dicts,
        checkpoints) are joined by the larger count.

    Args:
        model: whose account it is; runs that its modules remember are part of it.
        plan: of the run that goes on, or begins, here.
        beside: modules that the loss holds, such as a teacher; what they remember is part of it,
            too.
        other_data: whether the caller declares that earlier runs were on other people's data.
        announce: whether to warn of steps that were charged before, which come as no surprise to
            whoever charged them.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: PrivacyPlan,
        *,
        beside: Iterable[nn.Module] = (),
        other_data: bool = False,
        announce: bool = True,
    ) -> None:
        self.plan = plan
        self._model = model
        self._id = uuid4().hex
        self.entries = shared_entries(model)
        self.take_up(beside)
        if other_data:
            for entry in self.entries.values():
                entry["other_data"] = True
        known = self._run_of(plan)
        self.run = known or uuid4().hex
        self.begun = known is not None  # whether steps of this run have been taken on this model
        self.entries.setdefault(self.run, new_entry(plan, 0))
        earlier = sum(
            entry["charged"]
            for entry in self.entries.values()
            if not entry["other_data"] and not entry.get("release")
        )
        if earlier and announce:
            log.warning(
                "%d private steps were charged to this model before: its account goes on from"
                " there, and its statement will cover them",
                earlier,
            )
        attach(model, self.entries)
        self._held = _holders_of(model)

    def _run_of(self, plan: PrivacyPlan) -> str | None:
        """The run of this plan that the model remembers; of several, the one with most steps."""
        same = [
            run
            for run, entry in self.entries.items()
            if entry["plan"] == plan.to_dict() and not entry["other_data"] and not entry["beside"]
        ]
        return max(same, key=lambda run: self.entries[run]["charged"], default=None)

    def rename(self, name: str) -> None:
        """Give a run that nothing was charged to a name that is known elsewhere."""
        self.entries[name] = self.entries.pop(self.run)
        self.run = self._id = name

    def take_up(self, beside: Iterable[nn.Module]) -> None:
        """Count the runs that modules beside the model remember.

        What a teacher learnt of the data, its pupil learns from it. They are never the run that
        goes on here, even under the same plan.
        """
        for module in beside:
            runs = {run: entry for run, entry in entries_of(module).items() if entry["charged"]}
            merge(self.entries, {run: entry | {"beside": True} for run, entry in runs.items()})

    @property
    def charged(self) -> int:
        """Steps charged to this run."""
        charged: int = self.entries[self.run]["charged"]
        return charged

    def charge(self, steps: int) -> None:
        """Count so many steps more, which are about to be taken."""
        self.begun = True
        self.entries[self.run]["charged"] += steps

    def note_step(self, *, drawn: bool, isolation: str) -> None:
        """Put down what was seen of a step that was taken.

        Args:
            drawn: whether its batch was seen to be drawn by the plan's sampler.
            isolation: how examples were isolated in this object's steps so far; empty for ordinary
                training.
        """
        seen = self.entries[self.run]["seen"].setdefault(self._id, {"drawn": 0, "isolation": ""})
        seen["drawn"] += drawn
        seen["isolation"] = isolation

    def note_not_covered(self, words: str) -> bool:
        """Put down what the statement has to name as not covered; whether that is new."""
        not_covered = self.entries[self.run]["not_covered"]
        if words in not_covered:
            return False
        not_covered.append(words)
        return True

    # torch counts the writes to each tensor: what no step of ours has counted was written by
    # somebody else.

    def weights_changed(self) -> bool:
        """Whether parameters (frozen ones too) or buffers were written to since accepted."""
        known: _Weights | None = vars(self._model).get(_WRITES)
        return known is not None and known.differ_from(self._model, self._held)

    def changed_before(self) -> bool:
        """The same, for a new object: whether they were written to after an earlier one's step."""
        known: _Weights | None = vars(self._model).get(_WRITES)
        return known is not None and known.charged and known.differ_from(self._model, self._held)

    def accept_weights(self, *, closely: bool) -> None:
        """Take the weights as they are for the outcome of noisy steps.

        Args:
            closely: look at their values too, in which a write through ``.data`` shows; torch does
                not count those.
        """
        if closely:
            self._held = _holders_of(self._model)
        charged = any(entry["charged"] for entry in self.entries.values())
        sums = _sums(self._model) if closely else None
        vars(self._model)[_WRITES] = _Weights(id(self._model), charged, _writes(self._held), sums)

    def charge_up_to(self, steps: int) -> None:
        """Set the count of this run to ``steps``; a smaller number changes nothing."""
        entry = self.entries[self.run]
        entry["charged"] = max(entry["charged"], steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for checkpoints."""
        return {"run": self.run, "entries": json.loads(json.dumps(self.entries))}

    def join(self, saved: Mapping[str, Any]) -> None:
        """Take up an account that :meth:`to_dict` wrote.

        Raises:
            DpvdError: if it is of a run under another plan.
        """
        run = saved["run"]
        entries = saved["entries"]
        if entries[run]["plan"] != self.plan.to_dict():
            raise DpvdError(
                "the saved account belongs to another plan: go on with the plan it was started with"
            )
        if not self.begun:  # this is that run; what a ledger has told of it counts
            charged = self.entries.pop(self.run)["charged"]
            merge(self.entries, {run: new_entry(self.plan, charged)})
            self.run = run
            self.begun = True
        elif run != self.run:
            raise DpvdError(
                "this model has been trained under the plan already, and the saved account is of"
                " another run: load it into a step of its own, before the first step"
            )
        merge(self.entries, entries)

    def guarantee(
        self, delta: float, accountant: AccountantName | str, noise_source: str
    ) -> Guarantee:
        """The statement for all steps ever charged to the model on this data.

        Args:
            delta: δ.
            accountant: who adds up.
            noise_source: where the noise of this run comes from, in words.

        Raises:
            DpvdError: if earlier runs were accounted under another relation: there is no joint
                statement then.
        """
        merge(self.entries, entries_of(self._model))
        own = self.plan.guarantee(delta, accountant, steps=self.charged)
        own = replace(own, noise_source=noise_source)
        others = self._others()
        counted = [entry for entry in others if not entry["other_data"]]
        own = own.observed(
            seen=_seen([*counted, self.entries[self.run]]),
            not_covered=self._not_covered(others),
        )
        if counted:
            return self._jointly(own)
        return own

    def event(self, steps: int) -> DpEvent:
        """What is released of this data after so many steps of this run, earlier runs included.

        Raises:
            DpvdError: as :meth:`guarantee`.
        """
        own = self.plan.event(steps)
        earlier = [plan.event(taken) for plan, taken in self._earlier()]
        if earlier:
            return ComposedDpEvent([*earlier, own])
        return own

    def _others(self) -> list[dict[str, Any]]:
        """Other runs than this one of which something was charged."""
        return [
            entry for run, entry in self.entries.items() if run != self.run and entry["charged"]
        ]

    def _earlier(self) -> list[tuple[PrivacyPlan, int]]:
        """The plans of other runs on this data, and how many of their steps were charged."""
        counted = [entry for entry in self._others() if not entry["other_data"]]
        plans = [(PrivacyPlan.from_dict(entry["plan"]), entry["charged"]) for entry in counted]
        if any(plan.relation is not self.plan.relation for plan, _ in plans):
            raise DpvdError(
                "the model was trained under plans with different relations between data sets, for"
                " which there is no joint statement: use one relation for all runs"
            )
        return plans

    def _jointly(self, own: Guarantee) -> Guarantee:
        """The statement of this run together with earlier runs on the same data."""
        return joint_statement(own, [*self._earlier(), (self.plan, self.charged)])

    def _not_covered(self, others: list[dict[str, Any]]) -> tuple[str, ...]:
        """What no run covers, and runs that were declared to be on other data."""
        entries = (*others, self.entries[self.run])
        words = [words for entry in entries for words in entry["not_covered"]]
        elsewhere = sum(entry["charged"] for entry in others if entry["other_data"])
        if elsewhere:
            words.append(
                f"{elsewhere} earlier private steps of this model, declared to be on other data"
            )
        return distinct(words)


def remember(model: nn.Module, plan: PrivacyPlan, charged: int) -> None:
    """Note on a model that steps of a plan were charged to it, as when it is read from a file."""
    non_negative(charged=charged)
    Account(model, plan, announce=False).charge_up_to(charged)


def charge_release(model: nn.Module, plan: PrivacyPlan, name: str | None = None) -> None:
    """Charge a noisy sum over all examples to the model that is made of it.

    Args:
        model: whose account it enters.
        plan: of the release.
        name: of the release in accounts, drawn when it was made. A run that goes on charges it to a
            new model, and its checkpoint brings it along as well: by their name they are known to
            be one. A new one is drawn if None.

    Raises:
        DpvdError: if the plan is not of one step on all examples, or was charged to the model
            before: a second release under it would be free.
    """
    if plan.steps != 1 or plan.batch_size != plan.examples:
        raise DpvdError("a release takes all examples once: its plan has one step")
    account = Account(model, plan, announce=False)
    if account.charged:
        raise DpvdError(
            "this release was charged to the model before: a second one needs a plan of its own"
        )
    if name is not None:
        account.rename(name)
    account.charge(1)
    account.note_step(drawn=True, isolation="")
    account.entries[account.run]["release"] = True


@dataclass(frozen=True)
class _Weights:
    """How the weights of a model were: what is needed to notice a change, and no tensor.

    Attributes:
        model: identity of the model; a copy counts its writes from zero, and cannot be compared.
        charged: whether private steps had been charged to it.
        writes: how often each parameter and buffer had been written to.
        sums: by name, the sum of each parameter, as text in which NaN equals NaN; None if nobody
            looked.
    """

    model: int
    charged: bool
    writes: list[int]
    sums: dict[str, str] | None

    def differ_from(self, model: nn.Module, held: "Held") -> bool:
        if self.model != id(model):
            return False
        return self.writes != _writes(held) or (self.sums is not None and self.sums != _sums(model))


Held = list[Mapping[str, Tensor | None]]
"""Where a model's modules hold parameters and buffers: walking the model would be slow."""


def _holders_of(model: nn.Module) -> Held:
    places = [held for module in model.modules() for held in (module._parameters, module._buffers)]
    return [held for held in places if held]


def _writes(held: Held) -> list[int]:
    return [
        tensor._version for tensors in held for tensor in tensors.values() if tensor is not None
    ]


def _sums(model: nn.Module) -> dict[str, str]:
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return {name: digest(values) for name, values in trained.items()}


def _seen(entries: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the step objects of these runs saw: how many batches drawn, how examples isolated."""
    by_object = [seen for entry in entries for seen in entry["seen"].values()]
    charged = sum(entry["charged"] for entry in entries)
    drawn = sum(seen["drawn"] for seen in by_object)
    said: list[str] = []
    if drawn and drawn == charged:
        said.append("every batch drawn by the plan's sampler")
    elif drawn:
        said.append(f"{drawn} of {charged} steps on batches drawn by the plan's sampler")
    said += [seen["isolation"] for seen in by_object if seen["isolation"]]
    return distinct(said)
