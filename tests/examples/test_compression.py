"""The machinery of the compression example, on a small network and a few images."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from examples.compression import __main__ as compression
from examples.compression.lenets import NETWORKS, Images, SparseTraining
from examples.compression.log import Log, Run
from examples.compression.training import error, results, shrink, summary, train, train_dense
from torch import nn

import dpvd.nn as dn

PROTOCOL = SparseTraining(
    1,
    3,
    1.0,
    2,
    shrinks_per_epoch=2,
    batch_size=16,
    noise_learning_rate=1.0,
    log_sigma2=-4.0,
    shift=1,
)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.MaxPool2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


@pytest.fixture
def data() -> Images:
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(64, 1, 28, 28, generator=generator),
        torch.randint(10, (64,), generator=generator),
    )
    return Images(x, y)


def test_a_stopped_run_goes_on_to_the_same_end(data: Images, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class StoppingLog(Log):
        def keep(self, run: Run) -> None:
            super().keep(run)
            if len(run.history) == 2:
                raise Stop

    path = tmp_path / "run.json"
    with pytest.raises(Stop):
        train(network, PROTOCOL, data, data, 1, StoppingLog(path, {}))
    assert len(json.loads(path.read_text())["history"]) == 2
    resumed = train(network, PROTOCOL, data, data, 1, Log(path, {}))
    whole = train(network, PROTOCOL, data, data, 1, Log(None, {}))
    assert _without_times(resumed) == _without_times(whole)
    assert len(whole.history) == 3
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
    )


def _without_times(run: Run) -> list[dict[str, object]]:
    return [
        {name: value for name, value in epoch.items() if name != "cpu"} for epoch in run.history
    ]


def test_images_are_moved_by_at_most_the_shift(data: Images) -> None:
    generator, rows = torch.Generator().manual_seed(0), torch.arange(64)
    moved, labels = data.some(rows, 1, generator)
    assert torch.equal(labels, data.y)
    padded = nn.functional.pad(data.x, [1] * 4)
    places = [
        padded[:, :, down : down + 28, right : right + 28]
        for down in range(3)
        for right in range(3)
    ]
    matches = torch.stack([(moved == place).flatten(1).all(1) for place in places])
    assert (matches.sum(0) == 1).all(), "an image is one of the nine, and no other image"
    assert (matches.sum(1) > 0).all(), "and each of the nine is among 64"


def test_shrinking_changes_sizes_and_not_predictions(data: Images) -> None:
    run = train_dense(network, PROTOCOL, data, seed=0)
    with torch.no_grad():
        run.model[0].log_sigma2[1:3] = 10.0  # two channels of noise
    expected = dn.prune(run.model).total
    outputs = run.model.eval()(data.x)
    shrink(run, PROTOCOL)
    assert run.model[0].out_channels == 2
    torch.testing.assert_close(run.model.eval()(data.x), outputs)
    layers = dn.sparsity(run.model).layers
    assert (
        sum(layer.weights - layer.pruned for layer in layers) <= expected.weights - expected.pruned
    )


def test_results_count_from_the_weights_at_first(data: Images, tmp_path: Path) -> None:
    log = Log(tmp_path / "run.json", {"seed": 1})
    run = train(network, PROTOCOL, data, data, 1, log)
    assert run.weights == 4 * 25 + 144 * 10
    result = results(run, data)
    left = sum(int((layer.weight != 0).sum()) for layer in run.model if hasattr(layer, "weight"))
    assert result["compression"] == pytest.approx(run.weights / left)
    assert result["error_after"] == result["error_shrunk"] == error(run.model, data)
    assert f"compression {result['compression']:.1f}x" in summary(result)
    log.finish(run, result)
    written = json.loads((tmp_path / "run.json").read_text())
    assert (written["seed"], written["result"]["error_after"]) == (1, result["error_after"])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_shrinking_ends_when_it_is_enough(data: Images) -> None:
    run = train_dense(network, dataclasses.replace(PROTOCOL, enough=2.0), data, seed=0)
    with torch.no_grad():
        run.model[0].log_sigma2[1:] = 10.0  # a channel of four is left
    shrink(run, dataclasses.replace(PROTOCOL, enough=2.0))
    assert not run.shrinking
    model = run.model
    shrink(run, PROTOCOL)
    assert run.model is model


def test_shrinking_ends_when_its_epochs_are_over(data: Images) -> None:
    run = train_dense(network, PROTOCOL, data, seed=0)
    run.history = [{}, {}]
    model = run.model
    shrink(run, PROTOCOL)
    assert run.model is model


def test_the_log_of_a_network_that_lost_everything_is_strict_json(
    data: Images, tmp_path: Path
) -> None:
    run = train_dense(network, dataclasses.replace(PROTOCOL, dense_epochs=0), data, seed=0)
    with torch.no_grad():
        for layer in (run.model[0], run.model[4]):
            layer.log_sigma2.fill_(30.0)
    result = results(run, data)
    assert result["compression"] is None
    assert result["non_zero"] == [0, 0]
    assert "no weight left" in summary(result)
    log = Log(tmp_path / "run.json", {})
    log.keep(run)
    log.finish(run, result)
    assert (
        json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)["result"][
            "compression"
        ]
        is None
    )


def test_the_command_trains_and_writes_a_log(
    data: Images,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(NETWORKS, "lenet-5", (network, PROTOCOL))
    test = Images(data.x[:32], data.y[:32])
    monkeypatch.setattr(compression, "images", lambda *options: (data, None, test))
    path = tmp_path / "run.json"
    monkeypatch.setattr(
        "sys.argv", ["compression", "lenet-5", "--seed", "1", "--all-images", "--log", str(path)]
    )
    compression.main()
    written = json.loads(path.read_text())
    assert (written["network"], written["seed"], len(written["history"])) == ("lenet-5", 1, 3)
    assert written["protocol"]["batch_size"] == 16
    assert f"after pruning {written['result']['error_after']:.2%}" in capsys.readouterr().out
    assert written["result"]["error_after"] * 32 == pytest.approx(
        round(written["result"]["error_after"] * 32)
    )


def test_a_log_refuses_infinities(data: Images, tmp_path: Path) -> None:
    run = train_dense(network, PROTOCOL, data, seed=0)
    with pytest.raises(ValueError, match="JSON"):
        Log(tmp_path / "run.json", {}).finish(run, {"compression": float("inf")})
