"""``dpvd export``: a run as a file that other programs use."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvd.data import Encoder, load, open_table, schema_text
from dpvd.runs import MODEL, TrainedRun
from tests.cli.program import assert_refused, call
from tests.estimators.data import SCHEMA, patients


@pytest.fixture(scope="module")
def examples() -> torch.Tensor:
    return load("digits").test_x[:20].float()


def mean_probabilities(run, examples: torch.Tensor) -> torch.Tensor:
    trained = TrainedRun(run)
    with torch.no_grad():
        return trained.model(trained.network.inputs(examples)).softmax(1)


def test_onnx_takes_raw_examples_and_gives_the_same(run, examples, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"
    done = call("export", run, "--format", "onnx", "--out", path)
    assert done.code == 0, done.err
    assert f"Written: {path}" in done.out
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(["probabilities"], {"x": examples.numpy()})[0]
    np.testing.assert_allclose(found, mean_probabilities(run, examples), atol=1e-5)
    assert session.run(None, {"x": examples[:1].numpy()})[0].shape == (1, 10)
    words = session.get_modelmeta().custom_metadata_map
    assert words["privacy"] == TrainedRun(run).record.guarantee["sentence"]


def test_torch_takes_raw_examples_and_gives_the_same(run, examples, tmp_path):
    path = tmp_path / "model.pt2"
    told = call("export", run, "--format", "torch", "--out", path, "--json").json
    assert told["input_shape"] == [64]
    assert told["output"] == "probabilities"
    assert told["largest_difference"] <= 1e-5
    found = torch.export.load(path).module()(examples)
    torch.testing.assert_close(found, mean_probabilities(run, examples), atol=1e-5, rtol=0)


def test_the_state_has_the_tensors_of_the_run(run, tmp_path):
    path = tmp_path / "state.safetensors"
    assert call("export", run, "--format", "state", "--out", path).code == 0
    written, own = load_file(path), load_file(run / MODEL)
    assert set(written) == set(own)
    for name, tensor in own.items():
        assert torch.equal(written[name], tensor)


@pytest.mark.parametrize("format", ["onnx", "torch", "state"])
def test_the_run_of_a_table_is_exported_with_its_encoder(table_run, format, tmp_path):
    folder, file = table_run
    if format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    path = tmp_path / "model"
    told = call("export", folder, "--format", format, "--out", path, "--json").json
    assert told["largest_difference"] <= 1e-5
    encoder = Encoder.from_dict(json.loads(told["metadata"]["encoder"]))
    assert told["input_shape"] == [encoder.width]
    assert json.loads(told["metadata"]["features"]) == list(encoder.features)
    assert json.loads(told["metadata"]["classes"]) == ["well", "ill"]
    if format != "torch":
        return
    rows = [encoder.encode(frame) for frame in open_table(file).batches()]
    found = torch.export.load(path).module()(torch.from_numpy(np.concatenate(rows)))
    said = call("predict", folder, file, "--json").json
    named = [json.loads(told["metadata"]["classes"])[best] for best in found.argmax(1).tolist()]
    assert np.mean([row["class"] == name for row, name in zip(said, named, strict=True)]) > 0.95


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A finished run on a table, and the table."""
    folder = tmp_path_factory.mktemp("table")
    frame, state = patients()
    file = folder / "patients.csv"
    frame.assign(state=state).to_csv(file, index=False)
    schema = folder / "schema.toml"
    schema.write_text(schema_text(SCHEMA), encoding="utf-8")
    line = ["train", file, "--target", "state", "--schema", schema, "--epsilon", "5"]
    done = call(*line, "--delta", "1e-4", "--out", folder / "run", "--json")
    assert done.code == 0, done.err
    return folder / "run", file


def test_bad_uses_are_refused(run, unfinished, tmp_path):
    path = tmp_path / "there.pt2"
    path.write_text("precious")
    assert_refused(call("export", run, "--format", "torch", "--out", path), "exists already")
    assert path.read_text() == "precious"
    assert_refused(call("export", run, "--format", "pickle"), "pickle")
    assert_refused(call("export", run), "--format")
    assert_refused(call("export", tmp_path / "nowhere", "--format", "torch"), "nowhere")
    assert_refused(call("export", unfinished, "--format", "torch"), "finished")
