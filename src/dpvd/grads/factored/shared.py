"""Values that all examples share, followed to where they meet the batch.

A class token, a position embedding, the weight of a normalisation: such a value s has no batch
dimension, and its gradient is summed over examples by the operation in which it meets them. So s is
carried by a tensor that notices operations (`Shared`), and just before that one it is repeated for
each example: from [*shape] to [B, *shape], a view. The gradient that arrives there is the
per-example gradient of s, and what s was made from gets it by vector-Jacobian products, one for
each example. Where s is a weight and the operation a matrix product, or a table that is looked up
in, the gradient is kept as factors instead, as in the rule of a layer.

Which operations are meetings, and where the batch is in them, stands in the `ModelLayout`.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.func import vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from dpvd.grads.factored.holders import Holder, substituted
from dpvd.grads.factored.layout import (
    CallLayout,
    ModelLayout,
    OpLayout,
    batch_first,
    split_batch,
)
from dpvd.grads.factored.rule import (
    Call,
    CannotFactor,
    Direct,
    Lookup,
    Outer,
    Record,
    Terms,
    in_full,
    rows,
)
from dpvd.grads.factored.rule import sum_to_last as sum_positions

__all__ = ["Root", "Shared", "Tracker", "operation_name"]


@dataclass(frozen=True, eq=False)
class Root:
    """What shared values are made from: a parameter, or what a unit returned.

    Attributes:
        name: of the parameter in the model; of the unit, with brackets, for what it returned.
        tensor: the value.
        call: the call of the unit, if it is one.
    """

    name: str
    tensor: Tensor
    call: Call | None = None

    @property
    def parameters(self) -> list[Tensor]:
        """Those whose gradients its gradient gives."""
        if self.call is None:
            return [self.tensor]
        return [*self.call.unit.parameters.values()]


class Shared(Tensor):
    """A value without a batch dimension that trainable parameters have gone into.

    Attributes:
        plain: the value as an ordinary tensor, at its place in the graph.
        roots: what it was made from.
        is_root: whether it is its only root itself.
        is_transposed: whether it is its only root, transposed.
        tracker: of the present forward pass.
        expanded: [B, *shape], once it has met the batch.
    """

    plain: Tensor
    roots: tuple[Root, ...]
    is_root: bool
    is_transposed: bool
    tracker: "Tracker"
    expanded: Tensor | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves, spec = tree_flatten((args, kwargs or {}))
        tracker = next(leaf.tracker for leaf in leaves if isinstance(leaf, Shared))
        return tracker.apply(func, leaves, spec)


@dataclass(frozen=True)
class _Operation:
    """One operation on shared values.

    Attributes:
        func: the function of torch.
        name: its name.
        leaves: its arguments, flattened.
        spec: how they were nested.
        layout: where the batch is in its tensors.
    """

    func: Any
    name: str
    leaves: list[Any]
    spec: TreeSpec
    layout: OpLayout

    @property
    def dims(self) -> Iterator[Any]:
        """For each leaf the batch dimension, None for what is not a tensor."""
        dims = iter(self.layout.operands)
        for leaf in self.leaves:
            yield next(dims) if isinstance(leaf, Tensor) else None

    def call(self, leaves: list[Any]) -> Any:
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = tree_unflatten(self.leaves, self.spec)
        return args, kwargs


@dataclass
class Tracker:
    """Follows the shared values of one forward pass, and makes terms of the gradients they get.

    Attributes:
        layout: of the model.
        count: how many examples the batch has.
        names: of the parameters in the model, by identity.
        met: the values that have met the batch.
        products: where the gradient of a product arrives, with what makes terms of it.
    """

    layout: ModelLayout
    count: int
    names: dict[int, str]
    met: list[Shared] = field(default_factory=list)
    products: list[tuple[Record, Callable[[Tensor], Terms]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen: Counter[Any] = Counter()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Let the model compute with shared values in place of its loose parameters."""
        values: dict[str, Tensor] = {}
        holders: list[Holder] = []
        for unit in self.layout.loose:
            for local, parameter in unit.parameters.items():
                name = self.names[id(parameter)]
                holders.append((unit.module._parameters, local, name))
                if name not in values:
                    values[name] = self._root(Root(name, parameter))
        with substituted(holders, values):
            yield

    def next_call(self, name: str) -> CallLayout:
        """The layout of a unit's next call."""
        known = self.layout.calls[name]
        place = self._seen[name]
        self._seen[name] += 1
        layout: CallLayout
        layout = _at(known, place, f"{name!r} was called more often than when it was surveyed")
        return layout

    def shared_output(self, call: Call, output: Tensor) -> Tensor:
        """What a unit returned that has seen nothing of the batch."""
        if not output.requires_grad:
            return output
        given = [value for value in call.args if isinstance(value, Shared)]
        if not given:
            return self._root(Root(f"{call.unit.name}()", output, call))
        own = [Root(self.names[id(p)], p) for p in call.unit.parameters.values()]
        roots = _joined(*(value.roots for value in given), tuple(own))
        return self._shared(output, roots)

    # The forward pass

    def apply(self, func: Any, leaves: list[Any], spec: TreeSpec) -> Any:
        """The operation, as the layout has it."""
        name = operation_name(func)
        shared = [leaf for leaf in leaves if isinstance(leaf, Shared)]
        roots = _joined(*(value.roots for value in shared))
        key = (tuple(sorted({root.name for root in roots})), name)
        known = self.layout.ops.get(key)
        if known is None:
            return self._unknown(func, name, leaves, spec, roots)
        place = self._seen[key]
        self._seen[key] += 1
        layout = _at(known, place, f"{name} is applied to {_names(roots)} more often than before")
        operation = _Operation(func, name, leaves, spec, layout)
        if layout.is_irregular or len(layout.operands) != sum(map(_is_tensor, leaves)):
            raise CannotFactor(
                f"{_names(roots)} meets something in {name} that does not have the examples"
                " along one dimension"
            )
        if layout.stays_shared:
            return self._stay(operation, roots)
        if layout.is_expansion:
            return self._expand(operation)
        return self._meet(operation)

    def _unknown(
        self, func: Any, name: str, leaves: list[Any], spec: TreeSpec, roots: tuple[Root, ...]
    ) -> Any:
        """What returns no tensor that gradients flow through may be asked at any time."""
        args, kwargs = tree_unflatten([_plain(leaf) for leaf in leaves], spec)
        result = func(*args, **kwargs)
        found, _ = tree_flatten(result)
        if any(isinstance(value, Tensor) and value.requires_grad for value in found):
            raise CannotFactor(f"{name} is applied to {_names(roots)}, which it was not before")
        return result

    def _stay(self, operation: _Operation, roots: tuple[Root, ...]) -> Any:
        """The result is shared, too."""
        first = operation.leaves[0]
        result = operation.call([_plain(leaf) for leaf in operation.leaves])
        if isinstance(first, Shared) and result is first.plain:
            return first  # a conversion to what it is already

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.requires_grad:
                return value
            found = self._shared(value, roots)
            swaps = operation.name in _TRANSPOSING and value.dim() == 2
            if swaps and isinstance(first, Shared) and len(roots) == 1:
                found.is_transposed = first.is_root
                found.is_root = first.is_transposed
            return found

        return tree_map(wrapped, result)

    def _expand(self, operation: _Operation) -> Tensor:
        """``token.expand(B, -1, -1)`` and ``token.repeat(B, 1, 1)``: each example gets its own."""
        dim: Any
        (dim,) = operation.layout.results
        args, kwargs = operation.arguments()
        value, *sizes = args
        if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
            sizes = list(sizes[0])
        if operation.name not in _EXPANDING or kwargs or not isinstance(value, Shared):
            raise CannotFactor(f"{operation.name} gives something shared the size of the batch")
        sizes[dim] = 1

        def one(own: Tensor) -> Tensor:
            result: Tensor = operation.func(own, sizes)
            return result

        result = vmap(one, out_dims=dim)(self._expanded(value))
        return result.flatten(dim, dim + 1)

    def _meet(self, operation: _Operation) -> Any:
        """The first operation with something of the batch."""
        make = _PRODUCTS.get(operation.name)
        if make is not None:
            product = make(self, operation)
            if product is not None:
                return product
        if operation.name in _ELEMENTWISE:
            return self._elementwise(operation)
        if operation.name == "__setitem__":
            return self._assign(operation)
        if operation.name == "scaled_dot_product_attention":
            return self._attend(operation)
        if operation.name.endswith("_") and not operation.name.endswith("__"):
            raise CannotFactor(f"{operation.name} overwrites a part of the batch")
        return self._mapped(operation)

    def _elementwise(self, operation: _Operation) -> Tensor:
        """Broadcasting does the rest, once the batch is where the other operands have it."""
        (dim,) = operation.layout.results
        tensors = [leaf for leaf in operation.leaves if isinstance(leaf, Tensor)]
        rank = max(tensor.dim() for tensor in tensors)
        assert dim is not None
        pairs = list(zip(operation.leaves, operation.dims, strict=True))
        first, own = next((leaf, own) for leaf, own in pairs if own is not None)
        per_example = split_batch(first, own, self.count).shape[own + 1]
        leaves = []
        for leaf, place in pairs:
            value = leaf
            if isinstance(leaf, Shared):
                value = self._aligned(leaf, rank, dim, per_example)
            elif per_example > 1 and isinstance(leaf, Tensor):
                value = _split_operand(leaf, place, dim - rank + leaf.dim(), self.count)
            leaves.append(value)
        result: Tensor = operation.call(leaves)
        if operation.name in _IN_PLACE:
            overwritten: Tensor = operation.leaves[0]
            return overwritten
        if per_example > 1:
            result = result.flatten(dim, dim + 1)
        return result

    def _aligned(self, value: Shared, rank: int, dim: int, per_example: int) -> Tensor:
        """[..., B, ...] that broadcasts with the batch in this dimension of a result."""
        expanded = self._expanded(value)  # [B, *shape]
        shape = value.plain.shape
        missing = rank - len(shape)
        if dim >= missing:
            own = dim - missing
            if shape[own] != 1:
                raise CannotFactor(f"{_names(value.roots)} has a row for each example")
            moved = expanded.movedim(0, own)  # [..., B, 1, ...]
            return moved if per_example > 1 else moved.squeeze(own + 1)
        ones = [1] * (missing - dim - 1 + (per_example > 1))
        return expanded.reshape(self.count, *ones, *shape)

    def _assign(self, operation: _Operation) -> None:
        """``x[:, 0] = token``."""
        (target, index, value), _ = operation.arguments()
        first = index[0] if isinstance(index, tuple) else index
        keeps_batch = isinstance(first, slice) and first == slice(None)
        if not keeps_batch or isinstance(target, Shared) or operation.layout.operands[0] != 0:
            raise CannotFactor(f"{_names(value.roots)} is written into a part of the batch")
        if len(target) != self.count:
            raise CannotFactor(f"{_names(value.roots)} is written into flattened examples")
        rank = target[index].dim()
        target[index] = self._aligned(value, rank, 0, 1)

    def _attend(self, operation: _Operation) -> Any:
        """Attention with a shared bias; mapped over examples torch would choose a kernel that
        cannot differentiate it.
        """
        args, kwargs = operation.arguments()
        options = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        bias = options.get("attn_mask")
        query = options["query"]  # [B, ..., T, d], or k rows for each example
        others = [options[name] for name in ("query", "key", "value")]
        is_usual = operation.layout.results == (0,)
        if not is_usual or any(isinstance(value, Shared) for value in others):
            return self._mapped(operation)
        assert isinstance(bias, Shared)
        per_example = split_batch(query, 0, self.count).shape[1]
        own = self._aligned(bias, query.dim(), 0, per_example)
        if per_example > 1:
            own = own.expand(self.count, per_example, *own.shape[2:]).flatten(0, 1)
        options["attn_mask"] = own
        return operation.func(**options)

    def _mapped(self, operation: _Operation) -> Any:
        """Any operation, for each example with its own copy of the shared values."""
        values: list[Tensor] = []
        in_dims: list[int] = []
        where: list[int] = []
        for position, (leaf, dim) in enumerate(zip(operation.leaves, operation.dims, strict=True)):
            if isinstance(leaf, Shared):
                values.append(self._expanded(leaf))
                in_dims.append(0)
                where.append(position)
            elif dim is not None:
                values.append(split_batch(leaf, dim, self.count))
                in_dims.append(dim)
                where.append(position)
        nesting: list[TreeSpec] = []

        def one(*own: Tensor) -> tuple[Any, ...]:
            leaves = list(operation.leaves)
            for position, value in zip(where, own, strict=True):
                leaves[position] = value
            found, spec = tree_flatten(operation.call(leaves))
            nesting.append(spec)
            return tuple(found)

        out_dims: Any = operation.layout.results
        if None in out_dims:
            raise CannotFactor(f"{operation.name} returns something without the batch beside it")
        per_example = vmap(one, tuple(in_dims), out_dims, randomness="different")
        with warnings.catch_warnings():  # of operations that torch maps in a loop
            warnings.filterwarnings("ignore", "There is a performance drop")
            results = per_example(*values)
        pairs = zip(results, out_dims, strict=True)
        flat = [result.flatten(dim, dim + 1) for result, dim in pairs]
        return tree_unflatten(flat, nesting[0])

    def _expanded(self, value: Shared) -> Tensor:
        """[B, *shape]: where the per-example gradient of a shared value arrives."""
        if value.expanded is None:
            value.expanded = value.plain.expand(self.count, *value.plain.shape)
            self.met.append(value)
        return value.expanded

    def _root(self, root: Root) -> Shared:
        found = self._shared(root.tensor, (root,))
        found.is_root = True
        return found

    def _shared(self, plain: Tensor, roots: tuple[Root, ...]) -> Shared:
        found = plain.as_subclass(Shared)
        found.plain = plain
        found.roots = roots
        found.is_root = found.is_transposed = False
        found.tracker = self
        found.expanded = None
        return found

    # The backward pass

    def finished(self) -> "Tracker":
        """What was recorded so far: a checkpoint's second run is not to be added to it."""
        return replace(self, met=list(self.met), products=list(self.products))

    def records(self) -> list[Record]:
        """Where gradients arrive: of the values that have met the batch, then of products."""
        found = []
        for value in self.met:
            edge = get_gradient_edge(self._expanded(value))
            taken = [id(p) for root in value.roots for p in root.parameters]
            found.append(Record(edge, frozenset(taken), frozenset()))
        return [*found, *(record for record, _ in self.products)]

    @property
    def needs_graph(self) -> bool:
        """Whether gradients have to be carried further back than to where they arrive."""
        return any(not (value.is_root or value.is_transposed) for value in self.met)

    def terms(self, grads: list[Tensor | None]) -> Terms:
        """The terms of each parameter's gradient, by its name in the model."""
        terms: Terms = {}
        at_values = grads[: len(self.met)]
        at_products = grads[len(self.met) :]
        for (_, make), grad in zip(self.products, at_products, strict=True):
            if grad is not None:
                _extend(terms, make(grad))
        at_roots: dict[Root, Tensor] = {}
        for value, grad in zip(self.met, at_values, strict=True):
            if grad is None:
                continue
            for root, own in _at_roots(value, grad):
                so_far = at_roots.get(root)
                at_roots[root] = own if so_far is None else so_far + own
        for root, grad in at_roots.items():
            _extend(terms, self._root_terms(root, in_full(grad).contiguous()))
        return terms

    def _root_terms(self, root: Root, grad: Tensor) -> Terms:
        """From the per-example gradient [B, *shape] of a root; that of a unit by its rule."""
        if root.call is None:
            return {root.name: [Direct(grad)]}
        call = root.call
        call.check_unchanged()
        each = [_for_each(value, self.count) for value in call.args]
        repeated = replace(call, args=tuple(each))
        found: Terms = call.unit.rule(call.unit.module, repeated, grad)
        return {self.names[id(p)]: found[local] for local, p in call.unit.parameters.items()}


# What operations are


def operation_name(func: Any) -> str:
    """The name of a function of torch; for a property that of the property.

    >>> operation_name(torch.Tensor.T.__get__), operation_name(torch.add)
    ('T', 'add')
    """
    name: str = func.__name__
    if name == "__get__":
        name = func.__self__.__name__
    return name


_TRANSPOSING = frozenset({"T", "mT", "t", "transpose", "swapaxes", "swapdims"})
_EXPANDING = frozenset({"expand", "repeat", "broadcast_to", "tile"})
_IN_PLACE = frozenset({"add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__"})
_ELEMENTWISE = _IN_PLACE | {
    "add",
    "sub",
    "subtract",
    "mul",
    "multiply",
    "div",
    "divide",
    "true_divide",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "maximum",
    "minimum",
    "where",
}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _plain(value: Any) -> Any:
    return value.plain if isinstance(value, Shared) else value


def _names(roots: tuple[Root, ...]) -> str:
    return " and ".join(sorted({repr(root.name) for root in roots}))


def _joined(*several: tuple[Root, ...]) -> tuple[Root, ...]:
    """All roots, each once."""
    found = {id(root.tensor): root for roots in several for root in roots}
    return tuple(found.values())


def _at(known: list[Any], place: int, otherwise: str) -> Any:
    """What was seen at this place; a sequence of any length if all were alike."""
    if place < len(known):
        return known[place]
    if all(layout == known[0] for layout in known):
        return known[0]
    raise CannotFactor(otherwise)


def _split_operand(operand: Tensor, place: Any, own: int, count: int) -> Tensor:
    """An operand of an elementwise operation with one dimension more, for k rows per example."""
    if place is not None:
        return split_batch(operand, place, count)
    return operand.unsqueeze(own) if own >= 0 else operand


def _for_each(value: Any, count: int) -> Any:
    """[B, *shape] of an argument that examples share."""
    if isinstance(value, Tensor):
        return value.expand(count, *value.shape)
    return value


def _extend(terms: Terms, more: Terms) -> None:
    for name, parts in more.items():
        terms.setdefault(name, []).extend(parts)


# Gradients of what shared values were made from


def _at_roots(value: Shared, grad: Tensor) -> list[tuple[Root, Tensor]]:
    """The per-example gradients [B, *shape of the root] of each root, from those of a value."""
    if value.is_root or value.is_transposed:
        (root,) = value.roots
        return [(root, grad if value.is_root else grad.mT)]
    inputs = [root.tensor for root in value.roots]
    try:
        found: Any = torch.autograd.grad(
            value.plain, inputs, grad, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # an operation that cannot be mapped
        each = []
        for own in grad.unbind():
            one = torch.autograd.grad(
                value.plain, inputs, own, retain_graph=True, materialize_grads=True
            )
            each.append(one)
        found = [torch.stack(parts) for parts in zip(*each, strict=True)]
    pairs = zip(value.roots, found, strict=True)
    return [(root, own) for root, own in pairs if own is not None]


# Products and lookups, whose gradients have factors


def _linear(tracker: Tracker, operation: _Operation) -> Tensor | None:
    """y = x Wᵀ + b."""
    args, kwargs = operation.arguments()
    options = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    return _product(
        tracker, operation, options["input"], options["weight"], options.get("bias"), by_row=True
    )


def _matmul(tracker: Tracker, operation: _Operation) -> Tensor | None:
    """y = x W."""
    args, kwargs = operation.arguments()
    if kwargs or len(args) != 2:
        return None
    return _product(tracker, operation, args[0], args[1], None, by_row=False)


def _addmm(tracker: Tracker, operation: _Operation) -> Tensor | None:
    """y = b + x W, as transformers' Conv1D has it."""
    args, kwargs = operation.arguments()
    if kwargs or len(args) != 3:
        return None
    bias, x, weight = args
    return _product(tracker, operation, x, weight, bias, by_row=False)


def _product(
    tracker: Tracker, operation: _Operation, x: Tensor, weight: Any, bias: Any, *, by_row: bool
) -> Tensor | None:
    """A product with a shared matrix: δ ⊗ x for each example; None if it is not that simple.

    Args:
        tracker: of the forward pass.
        operation: the product.
        x: [..., in].
        weight: [out, in] if its rows belong to outputs, else [in, out].
        bias: [out] or None.
        by_row: whether rows of the weight belong to outputs.
    """
    (out_dim,) = operation.layout.results
    dims = [dim for dim in operation.layout.operands if dim is not None]
    if isinstance(x, Shared) or not isinstance(weight, Shared) or len(dims) != 1 or out_dim is None:
        return None
    is_parameter = all(root.call is None for root in weight.roots)
    is_matrix = weight.plain.dim() == 2 and (weight.is_root or weight.is_transposed)
    if not is_parameter or not is_matrix or dims[0] == x.dim() - 1:
        return None
    if isinstance(bias, Shared) and not (bias.is_root and bias.plain.dim() == 1):
        return None
    output: Tensor = operation.call([_plain(leaf) for leaf in operation.leaves])
    saved = x.detach()
    version = saved._version
    rows_are_outputs = by_row is weight.is_root
    root = weight.roots[0]
    bias_name = bias.roots[0].name if isinstance(bias, Shared) else None

    def terms(grad: Tensor) -> Terms:
        if saved._version != version:
            raise CannotFactor(f"what {root.name!r} was multiplied by was changed in place")
        delta = batch_first(grad, out_dim, tracker.count)
        factor = batch_first(saved, dims[0], tracker.count)
        left, right = (delta, factor) if rows_are_outputs else (factor, delta)
        found: Terms = {root.name: [Outer(rows(left), rows(right))]}
        if bias_name is not None:
            _extend(found, {bias_name: [Direct(sum_positions(delta))]})
        return found

    used = (weight, bias) if isinstance(bias, Shared) else (weight,)
    tracker.products.append((_record(output, used, x), terms))
    return output


def _record(output: Tensor, used: tuple[Shared, ...], x: Tensor | None = None) -> Record:
    """Of a product with these values, and with x."""
    taken = frozenset(id(root.tensor) for value in used for root in value.roots)
    inputs: set[tuple[Any, int]] = set()
    if x is not None and x.requires_grad:
        edge = get_gradient_edge(x)
        inputs.add((edge.node, edge.output_nr))
    return Record(get_gradient_edge(output), taken, frozenset(inputs))


def _lookup(tracker: Tracker, operation: _Operation) -> Tensor | None:
    """y_t = W[i_t]; padding has no gradient."""
    args, kwargs = operation.arguments()
    if operation.name == "__getitem__":
        args = args[::-1]
    options = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
    index = options["input"]
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
        return None
    table = options["weight"]
    out_dim: Any
    (out_dim,) = operation.layout.results
    (dim,) = [dim for dim in operation.layout.operands if dim is not None]
    is_table = isinstance(table, Shared) and table.is_root and table.plain.dim() == 2
    if not is_table or table.roots[0].call is not None:
        return None
    output: Tensor = operation.call([_plain(leaf) for leaf in operation.leaves])
    padding = options.get("padding_idx")
    name = table.roots[0].name

    def terms(grad: Tensor) -> Terms:
        values = batch_first(grad, out_dim, tracker.count)  # [B, ..., d]
        own = batch_first(index, dim, tracker.count)  # [B, ...]
        if padding is not None:
            values = values.masked_fill((own == padding % len(table.plain)).unsqueeze(-1), 0.0)
        count = tracker.count
        flat_values = values.reshape(count, -1, values.shape[-1])
        return {name: [Lookup(own.reshape(count, -1), flat_values, len(table.plain))]}

    tracker.products.append((_record(output, (table,)), terms))
    return output


_PRODUCTS: dict[str, Callable[[Tracker, _Operation], Tensor | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "__matmul__": _matmul,
    "addmm": _addmm,
    "embedding": _lookup,
    "__getitem__": _lookup,
}
