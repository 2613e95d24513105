"""``dpvd train``: a private model from one command."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dpvd.cli.console import print_json, print_line, print_text, say
from dpvd.cli.options import AsJson, Delta, parse_accountant, warn_of_large_delta
from dpvd.cli.progress import progress_bar
from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName, Relation, SamplingKind
from dpvd.report import write_report
from dpvd.runs import Method, NetworkKind, RunOptions, RunRecord, Scale, execute, prepare_run
from dpvd.training import Decay

__all__ = ["train"]


def train(
    dataset: Annotated[str, typer.Argument(help="digits or mnist")],
    delta: Delta,
    epsilon: Annotated[float | None, typer.Option(help="ε to spend; not needed with --method none.")] = None,
    method: Annotated[Method, typer.Option(help="dpvd, svi and dpsgd are private; none is not.")] = Method.DPVD,
    seed: Annotated[int, typer.Option(help="Of the initial weights and of dropout; never of the privacy noise.")] = 0,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size. Default: by the rule.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data. Default: by the rule.")] = None,
    accountant: Annotated[
        AccountantName, typer.Option(parser=parse_accountant, help="pld, rdp (or moments), zcdp, advanced.")
    ] = AccountantName.PLD,
    relation: Annotated[Relation, typer.Option(help="Which data sets are neighbours.")] = Relation.ADD_OR_REMOVE,
    sampling: Annotated[SamplingKind, typer.Option(help="How batches are drawn.")] = SamplingKind.POISSON,
    scale: Annotated[
        Scale | None, typer.Option(help="Source of the posterior scale ζ (dpvd). Default: privacy.")
    ] = None,
    network: Annotated[
        NetworkKind, typer.Option(help="mlp: one hidden layer; cnn: two convolutions and one, for images.")
    ] = NetworkKind.MLP,
    hidden: Annotated[int | None, typer.Option(help="Hidden units. Default: 1000 for mlp, 32 for cnn.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="η₀. Default: by the rule.")] = None,
    decay: Annotated[
        Decay | None, typer.Option(help="How the learning rate falls; power is η₀/t^γ in epoch t. Default: linear.")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="γ of --decay power. Default: 1.")] = None,
    clipping: Annotated[
        ClippingMode | None, typer.Option(help="How gradients are bounded. Default: automatic.")
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="C. Default: 1.")] = None,
    kl_weight: Annotated[float | None, typer.Option(help="Factor of the KL term. Default: by the rule.")] = None,
    seeded_noise: Annotated[
        bool, typer.Option("--seeded-noise", help="Reproducible noise and sampling: not private.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST's files are.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run. Default: a new one in runs/.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on a data set and write it, its record and its report page into a folder."""
    if resume and out_dir is None:
        raise DpvdError("--resume needs --out: name the folder of the run to go on with")
    options = RunOptions(
        delta=delta,
        epsilon=None if method is Method.NONE else epsilon,
        method=method,
        seed=seed,
        network=network,
        hidden=hidden,
        batch_size=batch_size,
        epochs=epochs,
        accountant=accountant,
        relation=relation,
        sampling=sampling,
        scale=scale,
        learning_rate=learning_rate,
        decay=decay,
        gamma=gamma,
        clipping=clipping,
        clip_norm=clip_norm,
        kl_weight=kl_weight,
        seeded_noise=seeded_noise,
    )
    data = load(dataset, data_dir)
    if method is not Method.NONE:
        warn_of_large_delta(delta, len(data.train_x))
    with say.status("calibrating the noise"):
        run = prepare_run(options, data)
    folder = out_dir if out_dir is not None else _new_folder(dataset, method)
    with progress_bar(run.plan.steps * run.plan.batch_size / run.plan.examples, options.epsilon) as on_step:
        record = execute(run, folder, resume=resume, on_step=on_step)
    with say.status("writing the report"):
        page = write_report(record.to_dict(), folder)
    if as_json:
        print_json(summary(record, folder))
    else:
        _show(record, page)


def summary(record: RunRecord, folder: Path) -> dict[str, Any]:
    """What scripts rely on. Names are added over time, never changed."""
    return {
        "test_accuracy": record.test["accuracy"],
        "epsilon": record.epsilon,
        "delta": record.guarantee["delta"],
        "noise_multiplier": record.plan["noise_multiplier"],
        "steps": record.guarantee["steps"],
        "run": str(folder),
        "method": record.method,
        "seed": record.seed,
        "batch_size": record.plan["batch_size"],
        "calibration_error": record.test["calibration_error"],
        "statement": record.guarantee["sentence"],
        "seconds": record.seconds,
        "report": str(folder / "report.html"),
    }


def _show(record: RunRecord, page: Path) -> None:
    low, high = record.test["interval"]
    accuracy = record.test["accuracy"]
    print_text(record.guarantee["sentence"], "bold")
    print_text(
        f"test accuracy {accuracy:.3f} (95 % interval {low:.3f} to {high:.3f}), "
        f"calibration error {record.test['calibration_error']:.3f}"
    )
    print_line(f"trained in {record.seconds:.1f} s, report {page}")


def _new_folder(dataset: str, method: Method) -> Path:
    return Path("runs") / f"{dataset}-{method}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
