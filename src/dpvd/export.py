"""Models as files for other programs: ONNX, ``torch.export``, and the plain state.

What is exported is the mean network: weights at their means, without the uncertainty that
`predict_dist` averages over. Its inputs are those of the model before any preprocessing by the
network itself; of a table, the encoded features. Every file is run, and compared with the model,
before it is kept.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from dpvd.data import Encoder
from dpvd.errors import DpvdError, choice
from dpvd.files import HANDED_OUT, write_atomically
from dpvd.runs import NetworkSpec, TrainedRun, TrainedTable
from dpvd.sklearn import DPVDClassifier, DPVDRegressor
from dpvd.tabular import TableModel

__all__ = ["ExportFormat", "Exported", "export_model", "table_metadata"]

TOLERANCE = 1e-5
INPUT = "x"
_METADATA = "metadata.json"  # beside the graph, in a file of torch.export


class ExportFormat(StrEnum):
    """What kind of file is written."""

    ONNX = "onnx"
    """For ONNX Runtime and whatever else reads ONNX."""
    TORCH = "torch"
    """A graph that ``torch.export.load`` reads, without the classes of this package."""
    STATE = "state"
    """The model's own tensors, as safetensors."""

    @property
    def suffix(self) -> str:
        """How names of such files end."""
        return {"onnx": ".onnx", "torch": ".pt2", "state": ".safetensors"}[self]


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: where.
        format: its kind.
        input_shape: of one row or example.
        output: what it gives, its name in the file: ``"probabilities"`` or ``"mean"``.
        largest_difference: between its outputs and the model's, on examples.
        metadata: what is written into it: inputs, features, classes, statement.
    """

    path: Path
    format: ExportFormat
    input_shape: tuple[int, ...]
    output: str
    largest_difference: float
    metadata: dict[str, str]


class MeanNetwork(nn.Module):
    """Preprocessing, the network at its mean weights, and probabilities if it has classes."""

    def __init__(self, model: nn.Module, network: NetworkSpec | None, classes: bool) -> None:
        super().__init__()
        self.model = model
        self.network = network
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities [n, classes], or means [n]."""
        rows = x if self.network is None else self.network.inputs(x)
        output: Tensor = self.model(rows)
        return output.softmax(-1) if self.classes else output


def export_model(
    model: Any,
    path: Path | str,
    *,
    format: ExportFormat | str,
    example: Tensor | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Write the mean network of a model into a file.

    Guarantees:
        The file was run on examples, of another number than it was made with, and its outputs equal
        the model's to 1e-5; otherwise nothing is written. A file that exists is not replaced.

    Args:
        model: a `TrainedRun` or `TrainedTable`, a fitted `DPVDClassifier` or `DPVDRegressor`, a
            `TableModel`, or any other classifier in torch, which gives logits.
        path: of the file.
        format: its kind.
        example: [n, ...] inputs, for a model of which the package does not know the shape.
        metadata: further entries to write into the file.

    Raises:
        DpvdError: if the model cannot be exported, a package is missing, or outputs differ.
    """
    kind = choice(format, ExportFormat, "format")
    path = Path(path)
    if path.exists():
        raise DpvdError(f"{path} exists already: choose another file")
    network, words = _described(model)
    rows = _example(network, example)
    words = {**words, **(metadata or {})}
    output = "probabilities" if network.classes else "mean"
    with torch.no_grad(), _quiet():
        content = _WRITERS[kind](network, rows, output, words)
        difference = _largest_difference(network, rows, content, kind)
    if not difference <= TOLERANCE:
        raise DpvdError(
            f"the exported model differs from the model by {difference:.3g}, more than {TOLERANCE}:"
            " nothing was written"
        )
    write_atomically(path, content, mode=HANDED_OUT)
    return Exported(path, kind, tuple(rows.shape[1:]), output, difference, words)


def table_metadata(encoder: Encoder, classes: list[str] | None) -> dict[str, str]:
    """What a program must know to use the model of a table: features in order, and classes.

    Args:
        encoder: makes the features; it is written down in full.
        classes: their names, in the order of the outputs; None for regression.
    """
    words = {
        "inputs": "encoded features of a table, one row each, in the order of features",
        "features": json.dumps(list(encoder.features)),
        "encoder": json.dumps(encoder.to_dict()),
    }
    if classes is not None:
        words["classes"] = json.dumps(classes)
    return words


def _described(model: Any) -> tuple[MeanNetwork, dict[str, str]]:
    """The network to export, in single precision, and words about it."""
    if isinstance(model, TrainedRun):
        words = {
            "inputs": f"raw examples, {model.network.features} numbers each",
            "privacy": model.record.guarantee["sentence"],
        }
        return _mean_network(model.model, model.network), words
    if isinstance(model, TrainedTable):
        words = table_metadata(model.encoder, list(model.classes) or None)
        words["privacy"] = model.record.guarantee["sentence"]
        return _mean_network(model.model), words
    if isinstance(model, DPVDClassifier | DPVDRegressor):
        if not hasattr(model, "model_"):
            raise DpvdError(f"this {type(model).__name__} is not fitted yet: call fit first")
        labels = getattr(model, "classes_", None)
        classes = None if labels is None else [str(label) for label in labels.tolist()]
        words = table_metadata(model.encoder_, classes) | {"privacy": str(model.privacy_)}
        return _mean_network(model.model_), words
    if isinstance(model, nn.Module):
        return _mean_network(model), {}
    raise DpvdError(f"a model or a finished run can be exported, got {type(model).__name__}")


def _mean_network(model: nn.Module, network: NetworkSpec | None = None) -> MeanNetwork:
    classes = not isinstance(model, TableModel) or model.classes is not None
    copied = deepcopy(model).float().requires_grad_(False)
    return MeanNetwork(copied, network, classes).eval()


def _example(network: MeanNetwork, given: Tensor | None) -> Tensor:
    """[n, ...] inputs, at least two."""
    if given is not None:
        if not isinstance(given, Tensor) or given.dim() < 2 or len(given) < 2:
            raise DpvdError("example must be a tensor of two or more inputs, [n, ...]")
        return given.float()
    if isinstance(network.model, TableModel):
        features = network.model.features
    elif network.network is not None:
        features = network.network.features
    else:
        raise DpvdError("example must be given for this model: a tensor of inputs, [n, ...]")
    source = torch.Generator().manual_seed(0)
    return 2 * torch.rand(4, features, generator=source) - 1


def _onnx(network: MeanNetwork, rows: Tensor, output: str, words: dict[str, str]) -> bytes:
    _needs("onnx", "onnxscript", "onnxruntime")
    program = torch.onnx.export(
        network,
        (rows,),
        input_names=[INPUT],
        output_names=[output],
        dynamic_shapes={INPUT: {0: torch.export.Dim("rows")}},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    for name, value in words.items():
        entry = proto.metadata_props.add()
        entry.key = name
        entry.value = value
    content: bytes = proto.SerializeToString()
    return content


def _torch(network: MeanNetwork, rows: Tensor, output: str, words: dict[str, str]) -> bytes:
    shapes = {INPUT: {0: torch.export.Dim("rows")}}
    program = torch.export.export(network, (rows,), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    extra = {_METADATA: json.dumps({"output": output, **words})}
    torch.export.save(program, buffer, extra_files=extra)
    return buffer.getvalue()


def _state(network: MeanNetwork, rows: Tensor, output: str, words: dict[str, str]) -> bytes:
    state = {name: tensor.contiguous() for name, tensor in network.model.state_dict().items()}
    return save(state, metadata={"output": output, **words})


_WRITERS = {ExportFormat.ONNX: _onnx, ExportFormat.TORCH: _torch, ExportFormat.STATE: _state}


def _largest_difference(
    network: MeanNetwork, rows: Tensor, content: bytes, kind: ExportFormat
) -> float:
    """How far the outputs of a file lie from the model's, on one input more than it was made with.

    NaN if an output is none.
    """
    inputs = torch.cat([rows, rows[:1].neg()])
    expected = network(inputs)
    if kind is ExportFormat.ONNX:
        found = _run_onnx(content, inputs)
    elif kind is ExportFormat.TORCH:
        found = torch.export.load(io.BytesIO(content)).module()(inputs)
    else:
        copied = deepcopy(network)
        for tensor in copied.model.state_dict().values():
            tensor.zero_()  # whatever is right afterwards comes from the file
        copied.model.load_state_dict(load(content))
        found = copied(inputs)
    if found.shape != expected.shape:
        return float("nan")
    scale = expected.abs().max().clamp_min(1.0)  # means may be large numbers
    return float((found - expected).abs().max() / scale)


def _run_onnx(content: bytes, inputs: Tensor) -> Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {INPUT: inputs.numpy()})[0])


def _needs(*packages: str) -> None:
    from importlib.util import find_spec

    lacking = [name for name in packages if find_spec(name) is None]
    if lacking:
        raise DpvdError(
            f"the format onnx needs the package {lacking[0]}: install it with pip install"
            " 'dpvd[export]', or choose format torch or state"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters say of themselves off the screen; the outcome is checked by running."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
