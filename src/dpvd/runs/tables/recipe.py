"""Which recipe a run on a table takes: from its options and from public numbers."""

from dpvd.data import Encoder
from dpvd.errors import DpvdError
from dpvd.runs.network import Method
from dpvd.runs.options import RunOptions
from dpvd.runs.recipes import NetworkKind
from dpvd.tabular import TableNetworkKind, TableRecipe, choose, choose_plain

__all__ = ["network_kind", "ordinary_hidden", "table_recipe"]

_ORDINARY_EPSILON = 1.0  # the rule knows budgets only; this one is in the middle of their range
_PRIOR_STD = 1.0  # of svi: a standard normal prior, as for images


def network_kind(options: RunOptions) -> TableNetworkKind:
    """What the user asked for.

    Raises:
        DpvdError: for a network that takes images, and for hidden units of a linear model.
    """
    if options.network is NetworkKind.CNN:
        raise DpvdError("network cnn takes images: choose linear, mlp or auto for a table")
    kind = TableNetworkKind(options.network)
    if kind is TableNetworkKind.LINEAR and options.hidden is not None:
        raise DpvdError("hidden units are for the network mlp: a linear model has none")
    is_asked_for = kind is TableNetworkKind.AUTO and options.hidden is not None
    return TableNetworkKind.MLP if is_asked_for else kind


def ordinary_hidden(options: RunOptions, examples: int, encoder: Encoder) -> int:
    """Hidden units of a run without privacy: those of a private run at ε = 1, to compare with."""
    recipe = choose(
        examples,
        encoder.width,
        _ORDINARY_EPSILON,
        options.delta,
        classes=len(encoder.schema.target.classes) or None,
        network=network_kind(options),
        hidden=options.hidden,
        hats=int(encoder.is_hat.sum()),
    )
    return recipe.hidden


def table_recipe(options: RunOptions, examples: int, encoder: Encoder, delta: float) -> TableRecipe:
    """The recipe of a private run.

    Args:
        options: what the user chose.
        examples: people to learn from.
        encoder: of the rows.
        delta: what is left of δ for learning.
    """
    assert options.epsilon is not None  # of a private method
    epsilon = options.epsilon - (options.private_bounds or 0.0)
    classes = len(encoder.schema.target.classes) or None
    recipe = choose(
        examples,
        encoder.width,
        epsilon,
        delta,
        classes=classes,
        network=network_kind(options),
        hidden=options.hidden,
        hats=int(encoder.is_hat.sum()),
        accountant=options.accountant,
        relation=options.relation,
    )
    if options.method is Method.DPVD:
        return recipe
    return choose_plain(
        examples,
        epsilon,
        delta,
        classes=classes,
        hidden=recipe.hidden,
        prior_std=_PRIOR_STD if options.method is Method.SVI else 0.0,
        accountant=options.accountant,
        relation=options.relation,
    )
