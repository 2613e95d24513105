"""``dpvd train``: a private model from one command."""

from datetime import UTC, datetime
from pathlib import Path
from sys import maxsize
from typing import Annotated, Any

import typer

from dpvd.cli.console import print_json, print_line, print_text, say
from dpvd.cli.options import (
    OUTPUT,
    PRIVACY,
    TRAINING,
    AsJson,
    DataDir,
    Delta,
    RelationChoice,
    SamplingChoice,
    parse_accountant,
    warn_of_large_delta,
)
from dpvd.cli.progress import show_progress
from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName, Relation, SamplingKind
from dpvd.report import write_report
from dpvd.runs import (
    Method,
    NetworkKind,
    RunOptions,
    RunRecord,
    Scale,
    default_batch_size,
    execute,
    prepare_run,
)
from dpvd.training import Decay

__all__ = ["EXAMPLES", "train"]

EXAMPLES = (
    "dpvd train digits --epsilon 1 --delta 1e-5 --out runs/first",
    "dpvd train mnist --epsilon 3 --delta 1e-5 --network cnn --data-dir ~/data",
)

NETWORK = "Network"  # a heading in the help

# The recipe takes all examples up to these numbers.
PRIVATE_BATCH = default_batch_size(maxsize, private=True)
ORDINARY_BATCH = default_batch_size(maxsize, private=False)


def train(
    dataset: Annotated[str, typer.Argument(help="digits or mnist")],
    delta: Delta,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="ε to spend. Required unless --method none.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    accountant: Annotated[
        AccountantName,
        typer.Option(
            parser=parse_accountant,
            help="How the steps' privacy loss is added up; moments is another name of rdp.",
            rich_help_panel=PRIVACY,
        ),
    ] = AccountantName.PLD,
    relation: RelationChoice = Relation.ADD_OR_REMOVE,
    sampling: SamplingChoice = SamplingKind.POISSON,
    clipping: Annotated[
        ClippingMode | None,
        typer.Option(
            help="How per-example gradients are bounded. Default: automatic.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Clipping norm C. Default: 1.", rich_help_panel=PRIVACY),
    ] = None,
    seeded_noise: Annotated[
        bool,
        typer.Option(
            "--seeded-noise",
            help="Reproducible noise and sampling: not private against whoever knows the seed.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    method: Annotated[
        Method,
        typer.Option(
            help="dpvd, svi and dpsgd are private; none is not.",
            rich_help_panel=TRAINING,
        ),
    ] = Method.DPVD,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Expected batch size. Default: set by the recipe, all examples up to "
            f"{PRIVATE_BATCH} (--method none: {ORDINARY_BATCH}).",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Passes over the data. Default: set by the recipe (100 on digits, 10.5 on mnist).",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Initial learning rate η₀. Default: set by the recipe, from the noise.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    decay: Annotated[
        Decay | None,
        typer.Option(
            help="How the learning rate falls; power is η₀/t^γ in epoch t. Default: linear.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Exponent γ of --decay power. Default: 1.", rich_help_panel=TRAINING),
    ] = None,
    kl_weight: Annotated[
        float | None,
        typer.Option(
            help="Factor of the KL term (dpvd). Default: set by the recipe, 0.01.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed for initial weights and dropout (never for privacy noise).",
            rich_help_panel=TRAINING,
        ),
    ] = 0,
    network: Annotated[
        NetworkKind,
        typer.Option(
            help="mlp: one hidden layer; cnn: two convolutions and a hidden layer, for images.",
            rich_help_panel=NETWORK,
        ),
    ] = NetworkKind.MLP,
    hidden: Annotated[
        int | None,
        typer.Option(
            help="Hidden units. Default: 1000 for mlp, 32 for cnn.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    scale: Annotated[
        Scale | None,
        typer.Option(
            help="Source of the posterior scale ζ (dpvd). Default: privacy.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    data_dir: DataDir = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run. Default: a new one in runs/.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the interrupted run in --out.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on a data set; write model, record and report page into a folder."""
    if resume and out_dir is None:
        raise DpvdError("--resume needs --out: name the folder of the run to go on with")
    if clipping is ClippingMode.NONE and method is not Method.NONE:
        raise DpvdError(f"--clipping none is for --method none: {method} needs bounded gradients")
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
    all_epochs = run.plan.steps * run.plan.batch_size / run.plan.examples
    with show_progress(all_epochs, options.epsilon) as on_step:
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
