"""``dpvd show``: what a run was, what it promises and what it reached."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from dpvd.cli.console import out, print_json, print_line, print_text
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError, is_finite_number
from dpvd.privacy import Ledger
from dpvd.report.declared import declared_for, parse_declared
from dpvd.report.facts import releases_of
from dpvd.report.registry import registry_yaml
from dpvd.report.statement_page import write_statement
from dpvd.runs import LEDGER, RECORD, REPORT, RunRecord, verify_run
from dpvd.settings import Group

__all__ = ["EXAMPLES", "show"]

EXAMPLES = (
    "dpvd show runs/first",
    'dpvd show runs/first --statement statement.html --declare owner="Ward 7"',
)

RELEASE_LEDGERS = "ledger-*.jsonl"


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    statement: Annotated[
        Path | None,
        typer.Option(
            help="New file to write the page to hand out to. Default: no page.",
            rich_help_panel=Group.OUTPUT,
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry",
            help="Print the entry for the OpenDP Deployments Registry, as YAML.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = False,
    declare: Annotated[
        list[str] | None,
        typer.Option(
            help="What only people know, as name=value, often. Default: declared.toml.",
            rich_help_panel=Group.OUTPUT,
            show_default=False,
        ),
    ] = None,
    public_test: Annotated[
        bool,
        typer.Option(
            "--public-test",
            help="The test data is public: tell results on it in --statement and --registry.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's statement, result and settings, or what an unfinished run was charged."""
    _check(statement, registry, as_json, declare or [], public_test)
    given = parse_declared(declare or [])
    if not run.is_dir():
        raise DpvdError(f"there is no run folder {run}")
    if not (run / RECORD).exists() and _ledgers(run):
        _show_unfinished(run, as_json, wanted=registry or statement is not None)
        return
    record = RunRecord.read(run)
    declared = declared_for(record, run, given)
    if registry:
        text = registry_yaml(record, declared, with_test=public_test)
        print(text, end="")
    elif statement is not None:
        page = write_statement(statement, record, declared, with_test=public_test)
        print_line(f"statement {page}")
    elif as_json:
        print_json(record.to_dict())
    else:
        _show_finished(run, record)


def _check(
    statement: Path | None, registry: bool, as_json: bool, declare: list[str], public_test: bool
) -> None:
    """Raise where options contradict each other or would have no effect."""
    asked = [
        name
        for name, given in (
            ("--statement", statement is not None),
            ("--registry", registry),
            ("--json", as_json),
        )
        if given
    ]
    if len(asked) > 1:
        raise DpvdError(f"{' and '.join(asked)} do not go together: take one of them")
    if (declare or public_test) and not registry and statement is None:
        name = "--declare" if declare else "--public-test"
        raise DpvdError(f"{name} goes with --statement or --registry: give one of them")
    if statement is not None and statement.exists():
        raise DpvdError(f"--statement must be a new file: {statement} exists already")


def _show_finished(run: Path, record: RunRecord) -> None:
    try:
        rows = _rows(record)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DpvdError(
            f"the record in {run} is damaged ({type(error).__name__}): restore it from a copy, or"
            " look at it with --json"
        ) from error
    print_text(str(record.guarantee["sentence"]), "bold")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (rows | {"checked": verify_run(run).verdict}).items():
        table.add_row(name, Text(value))
    out.print(table, soft_wrap=False)
    if (run / REPORT).exists():
        print_line(f"report {run / REPORT}")


def _rows(record: RunRecord) -> dict[str, str]:
    """What the table shows, by name."""
    dataset = record.dataset
    rows = {
        **_results(record.test),
        "data": f"{dataset['name']}, {dataset['train']:,} to train, {dataset['test']:,} to test",
        "network": ", ".join(record.model["layers"]),
        "method": f"{record.method}, seed {record.seed}",
        "plan": _phrase(record.plan),
    }
    releases = [
        f"{entry.get('name')} {_short(entry.get('share'))}" for entry in releases_of(record)
    ]
    if releases:
        rows["budget"] = ", ".join(releases)
    if record.recipe:
        rows["recipe"] = _phrase(record.recipe)
    rows["training"] = f"{record.seconds:.1f} s, {record.created}, dpvd {record.version}"
    if record.sparsity:
        total = record.sparsity["total"]
        threshold = record.sparsity["threshold"]
        rows["prunable"] = (
            f"{total['pruned']:,} of {total['weights']:,} weights (log α ≥ {threshold:g})"
        )
    return rows


_RESULTS = {
    "auc": "test AUC",
    "rmse": "test RMSE",
    "mae": "test MAE",
    "coverage": "interval coverage",
    "calibration_error": "calibration error",
}


def _results(test: Mapping[str, Any]) -> dict[str, str]:
    """What was measured on test data, by name."""
    rows = {}
    if is_finite_number(test.get("accuracy")):
        low, high = test["interval"]
        rows["test accuracy"] = f"{test['accuracy']:.4f} (95 % interval {low:.4f} to {high:.4f})"
    for name, title in _RESULTS.items():
        if is_finite_number(test.get(name)):
            rows[title] = f"{test[name]:.4f}"
    return rows or {"test": "not measured"}


def _phrase(values: Mapping[str, Any]) -> str:
    """Settings in words: batch size 200, clipping (mode automatic, clip norm 1)."""
    phrases = []
    for name, value in values.items():
        is_in_statement = isinstance(value, list)
        if value is not None and not is_in_statement:
            words = name.replace("_", " ")
            phrases.append(f"{words} {_short(value)}")
    return ", ".join(phrases)


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return f"({_phrase(value)})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _ledgers(run: Path) -> list[Path]:
    """The ledgers of a run: of its single releases, and of its steps."""
    paths = [*sorted(run.glob(RELEASE_LEDGERS)), run / LEDGER]
    return [path for path in paths if Ledger.has_begun(path)]


def _show_unfinished(run: Path, as_json: bool, *, wanted: bool) -> None:
    """Say what was charged; a run of several releases has a ledger for each."""
    ledgers = [Ledger.open(path) for path in _ledgers(run)]
    plan = ledgers[-1].plan
    charged = sum(ledger.charged for ledger in ledgers)
    steps = sum(ledger.plan["steps"] for ledger in ledgers)
    if wanted:
        raise DpvdError(
            f"the run in {run} is not finished, and there is no statement yet: {charged} of {steps}"
            " steps are charged"
        )
    if as_json:
        print_json({"finished": False, "charged": charged, "steps": steps, "plan": plan})
        return
    if list(run.glob(RELEASE_LEDGERS)):  # of a table: what is still to come has no ledger yet
        print_text(f"unfinished: {charged} noisy sums and steps are charged so far.")
        print_line(f"To continue, rerun the command that started it with --out {run} --resume")
        return
    print_text(f"unfinished: {charged} of {steps} steps are charged.")
    if charged == steps:
        print_text("No record was written. If you trained from Python: dpvd.report.write_run.")
    print_line(f"To continue, rerun the command that started it with --out {run} --resume")
