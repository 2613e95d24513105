"""Exported models do what the model does, in the programs they are meant for."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dpvd.data import Encoder, open_table
from dpvd.errors import DpvdError
from dpvd.export import ExportFormat, export_model
from dpvd.sklearn import DPVDClassifier, DPVDRegressor
from dpvd.tabular import TableMethod, TableModel, choose, fit_table
from tests.estimators.data import SCHEMA, numbers, patients
from tests.tabular.tables import make_table

FORMATS = list(ExportFormat)


def skip_without_onnx(kind: ExportFormat) -> None:
    if kind is ExportFormat.ONNX:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name)


def outputs(path, kind: ExportFormat, x: torch.Tensor, model: TableModel) -> torch.Tensor:
    """What the file gives, run without anything of this package but the state's own model."""
    if kind is ExportFormat.ONNX:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    if kind is ExportFormat.TORCH:
        return torch.export.load(path).module()(x)
    sizes = {}
    if not isinstance(model.head, torch.nn.Linear):
        sizes["hidden"] = model.head.hidden.out_features
        sizes["hidden_features"] = len(model.seen)
    fresh = TableModel(model.features, model.classes, whitened=model.whitened, **sizes)
    fresh.load_state_dict(load_file(path))
    found = fresh.eval()(x)
    return found if model.classes is None else found.softmax(-1)


def metadata_of(path, kind: ExportFormat) -> dict[str, str]:
    if kind is ExportFormat.ONNX:
        import onnx

        return {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    if kind is ExportFormat.TORCH:
        extra = {"metadata.json": ""}
        torch.export.load(path, extra_files=extra)
        return json.loads(extra["metadata.json"])
    with safe_open(path, "pt") as file:
        return file.metadata()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("method", TableMethod)
@pytest.mark.parametrize("classes", [2, 3, None])
def test_a_table_gives_the_same_from_its_file(kind, method, classes, tmp_path):
    skip_without_onnx(kind)
    table = make_table(400, 5, classes=classes or 2)
    epsilon = 0.05 if method is TableMethod.STATISTICS else 20.0
    network = "mlp" if method is TableMethod.NETWORK else "linear"
    recipe = choose(400, 5, epsilon, 1e-5, classes=classes, network=network)
    assert recipe.method is method
    done = fit_table(
        table.x,
        table.numbers if classes is None else table.classes,
        classes=classes,
        epsilon=epsilon,
        delta=1e-5,
        target_range=None if classes else (-50.0, 50.0),
        recipe=recipe,
    )
    path = tmp_path / f"model{kind.suffix}"
    told = export_model(done.model, path, format=str(kind))
    assert told.largest_difference <= 1e-5
    assert told.output == ("mean" if classes is None else "probabilities")
    with torch.no_grad():
        expected = done.model(table.x)
        expected = expected if classes is None else expected.softmax(-1)
        found = outputs(path, kind, table.x, done.model)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=1e-5 if classes else 5e-4, rtol=0)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_file_of_an_estimator_says_how_to_use_it(kind, tmp_path):
    skip_without_onnx(kind)
    x, y = patients()
    model = DPVDClassifier(epsilon=5, delta=1e-4, schema=SCHEMA).fit(x, y)
    path = tmp_path / f"model{kind.suffix}"
    export_model(model, path, format=kind, metadata={"version": "7"})
    words = metadata_of(path, kind)
    assert json.loads(words["classes"]) == ["ill", "well"]
    assert json.loads(words["features"]) == list(model.encoder_.features)
    assert words["privacy"] == str(model.privacy_)
    assert words["version"] == "7"
    # Whoever has the file and its metadata can predict.
    encoder = Encoder.from_dict(json.loads(words["encoder"]))
    rows = np.concatenate([encoder.encode(frame) for frame in open_table(x).batches()])
    found = outputs(path, kind, torch.from_numpy(rows), model.model_)
    np.testing.assert_allclose(found.detach().numpy(), model.predict_proba(x), atol=0.05)
    named = np.array(json.loads(words["classes"]))[found.argmax(1).numpy()]
    assert (named == model.predict(x)).mean() > 0.98


def test_a_regressor_gives_means_in_its_units(tmp_path):
    x, _ = numbers()
    model = DPVDRegressor(epsilon=5, delta=1e-4, bounds=(0, 1), target_bounds=(0, 1e4))
    model.fit(x, 1e4 * x[:, 0])
    told = export_model(model, tmp_path / "m.pt2", format="torch")
    assert told.output == "mean"
    rows = torch.from_numpy(model.encoder_.encode(open_frame(x)))
    found = torch.export.load(told.path).module()(rows)
    np.testing.assert_allclose(found.numpy(), model.predict(x), rtol=1e-4, atol=0.1)


def open_frame(x):
    columns = {f"x{place}": x[:, place] for place in range(x.shape[1])}
    return next(iter(open_table(columns).batches()))


def test_any_classifier_can_be_exported_with_an_example(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(6, 3)
    with pytest.raises(DpvdError, match="example must be given"):
        export_model(model, tmp_path / "m.pt2", format="torch")
    with pytest.raises(DpvdError, match="two or more inputs"):
        export_model(model, tmp_path / "m.pt2", format="torch", example=x[0])
    told = export_model(model, tmp_path / "m.pt2", format="torch", example=x)
    found = torch.export.load(told.path).module()(x[:3])
    torch.testing.assert_close(found, model(x[:3]).softmax(-1))
    assert model[0].weight.requires_grad  # the model itself is left as it was


class Fickle(torch.nn.Module):
    """Is another network while it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if torch.compiler.is_exporting() else x


def test_a_file_that_differs_from_the_model_is_not_kept(tmp_path):
    with pytest.raises(DpvdError, match="differs from the model by"):
        export_model(Fickle(), tmp_path / "m.pt2", format="torch", example=torch.rand(4, 3))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tmp_path):
    model = TableModel(3, 2, whitened=False)
    for wrong, words in [
        (DPVDClassifier(epsilon=1, delta=1e-4), "not fitted yet"),
        ("runs/first", "got str"),
    ]:
        with pytest.raises(DpvdError, match=words):
            export_model(wrong, tmp_path / "m.pt2", format="torch")
    with pytest.raises(DpvdError, match="format must be one of onnx, torch, state; got 'pickle'"):
        export_model(model, tmp_path / "m.pt2", format="pickle")
    (tmp_path / "m.pt2").write_text("precious")
    with pytest.raises(DpvdError, match="exists already"):
        export_model(model, tmp_path / "m.pt2", format="torch")
    assert (tmp_path / "m.pt2").read_text() == "precious"


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    with pytest.raises(
        DpvdError, match=r"needs the package (onnx|onnxscript|onnxruntime): install"
    ):
        export_model(TableModel(3, 2, whitened=False), tmp_path / "m.onnx", format="onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["torch", "state"])
def test_the_network_of_a_table_is_exported_whole(tmp_path, format):
    """The linear path, the hidden units and which features these see."""
    model = TableModel(5, 3, whitened=True, hidden=4, hidden_features=2)
    source = torch.Generator().manual_seed(0)
    for weight in model.head.parameters():
        weight.data.normal_(generator=source)
    model.head.start.normal_(generator=source)
    model.seen.copy_(torch.tensor([1, 3]))
    done = export_model(model, tmp_path / "model", format=format)
    assert done.largest_difference <= 1e-5
    assert done.input_shape == (5,)
