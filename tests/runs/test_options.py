"""The list of options: said once, and enough for checks, flags, plan and recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from dpvd.cli import app
from dpvd.cli.options import takes_options
from dpvd.data import load, prepare
from dpvd.errors import DpvdError, OptionalChoice, positive
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.runs import RunOptions, prepare_run
from dpvd.settings import Group, Part, Setting, check, settings_of
from dpvd.training import Recipe

TRAIN = typer.main.get_command(app).commands["train"].load()
OWN = {
    # of the command itself
    *("dataset", "data_dir", "out_dir", "resume", "as_json", "processes"),
    "seeds",  # of a sweep, not of a run
    # which table is read, and how
    *("target", "schema", "id", "rows_per_unit", "test", "test_fraction", "delimiter", "encoding"),
}


def test_every_option_of_a_run_is_a_flag_with_its_help_and_group():
    flags = {each.name: each for each in TRAIN.params if each.name not in OWN}
    settings = settings_of(RunOptions)
    assert list(flags) == list(settings)
    for name, setting in settings.items():
        assert flags[name].opts == ["--" + name.replace("_", "-")]
        assert flags[name].help == setting.help
        assert flags[name].rich_help_panel == setting.group


def test_options_of_a_part_are_fields_of_it():
    parts = {Part.PLAN: PrivacyPlan, Part.RECIPE: Recipe}
    for name, setting in settings_of(RunOptions).items():
        if setting.part is not None:
            assert name in {field.name for field in fields(parts[setting.part])}


def test_only_what_was_given_replaces_the_rule():
    options = RunOptions(delta=1e-5, epsilon=1.0, relation="replace-one", kl_weight=0.0)
    assert options.given_for(Part.RECIPE) == {"kl_weight": 0.0}
    assert options.given_for(Part.PLAN) == {
        "relation": Relation.REPLACE_ONE,
        "sampling": options.sampling,
    }


def test_ordinary_training_drops_the_budget_of_a_command_line():
    given = {"delta": 1e-5, "epsilon": 3.0, "method": "none"}
    assert RunOptions.from_given(given).epsilon is None


def test_a_private_run_without_clipping_is_refused():
    with pytest.raises(DpvdError, match="needs bounded gradients"):
        RunOptions(delta=1e-5, epsilon=1.0, clipping="none")


def test_other_optimizers_need_a_rate_and_a_scale_that_does_not_rest_on_sgd():
    with pytest.raises(DpvdError, match="give --scale learned, or another method"):
        RunOptions(delta=1e-5, epsilon=1.0, optimizer="adamw", learning_rate=0.01)
    with pytest.raises(DpvdError, match="adam-bc needs --learning-rate"):
        RunOptions(delta=1e-5, epsilon=1.0, optimizer="adam-bc", method="dpsgd")
    learned = RunOptions(
        delta=1e-5, epsilon=1.0, optimizer="adamw", learning_rate=0.01, scale="learned"
    )
    recipe = prepare_run(learned, prepare(load("digits"))).recipe
    assert type(recipe.make_optimizer([torch.nn.Parameter(torch.ones(1))])) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--scale privacy rests on noise that is independent"),
        ({"method": "dpsgd"}, "bands needs --learning-rate"),
        ({"method": "none"}, "--method none has none"),
        ({"method": "svi", "optimizer": "adam-bc", "learning_rate": 0.1}, "leave out --bands"),
    ],
)
def test_correlated_noise_is_refused_where_something_rests_on_independent_noise(given, words):
    with pytest.raises(DpvdError, match=words):
        RunOptions(**{"delta": 1e-5, "epsilon": 1.0, "bands": 4} | given)


def test_correlated_noise_reaches_the_plan():
    options = RunOptions(
        delta=1e-5, epsilon=1.0, bands=4, method="dpsgd", batch_size=64, learning_rate=0.1
    )
    plan = prepare_run(options, prepare(load("digits"))).plan
    assert plan.bands == 4
    assert plan.epsilon(1e-5) <= 1.0


@dataclass(frozen=True)
class Cooking:
    """Settings as a stranger would write them."""

    minutes: Annotated[float, Setting("Time in the oven.", Group.TRAINING, positive)]
    relation: Annotated[
        OptionalChoice[Relation], Setting("Beside what. Default: nothing.", Group.PRIVACY)
    ] = OptionalChoice(Relation)
    hot: Annotated[bool, Setting("With pepper.", Group.TRAINING)] = False

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def from_given(cls, given: Mapping[str, Any]) -> "Cooking":
        return cls(**given)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--minutes 3", Cooking(3.0)),
        ("--minutes 3 --hot --relation replace-one", Cooking(3.0, Relation.REPLACE_ONE, True)),
    ],
)
def test_a_dataclass_of_settings_is_all_that_flags_take(line, expected):
    seen = []
    program = typer.Typer()

    @program.command()
    @takes_options(Cooking)
    def cook(options: Cooking) -> None:
        seen.append(options)

    done = CliRunner().invoke(program, line.split())
    assert done.exit_code == 0, done.output
    assert seen == [expected]


def test_checks_name_the_field():
    with pytest.raises(DpvdError, match="minutes must be a finite number above 0, got -1"):
        Cooking(-1)
    with pytest.raises(DpvdError, match="relation must be one of"):
        Cooking(1, "next-door")
