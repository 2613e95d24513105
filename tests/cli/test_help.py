"""Help: examples that work, options in groups, defaults that are those of the program."""

import re
import shlex

import pytest
import typer

from dpvd.cli import COMMANDS, EXAMPLES, app
from dpvd.plan import PrivacyPlan
from dpvd.runs import default_batch_size, default_steps, private_recipe
from dpvd.runs.recipes import Linear, Mlp
from tests.cli.program import call

ROOT = typer.main.get_command(app)
LOADED = {name: command.load() for name, command in ROOT.commands.items()}


def help_of(*command: str) -> str:
    """What ``--help`` prints, on one line and without the frames around groups."""
    outcome = call(*command, "--help")
    assert outcome.code == 0, outcome.err
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", outcome.out).split())


def examples_of(command) -> list[str]:
    return re.findall(r"^\$ (.+)$", command.epilog, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_two_examples(name):
    examples = examples_of(LOADED[name])
    assert len(examples) == 2
    assert help_of(name).endswith("Examples: " + " ".join(f"$ {line}" for line in examples))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_parse(name):
    for line in examples_of(LOADED[name]):
        program, command, *arguments = shlex.split(line)
        assert (program, command) == ("dpvd", name)
        LOADED[name].make_context(name, arguments)


def test_the_overview_ends_with_examples():
    assert help_of().endswith("Examples: " + " ".join(f"$ {line}" for line in EXAMPLES))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_a_group_and_says_what_it_does(name):
    options = [each for each in LOADED[name].params if each.param_type_name == "option"]
    for option in options:
        assert option.rich_help_panel, option.name
        assert option.help, option.name
        assert option.help[0].isupper() or option.help[0] in "δε" or option.opts[0] in CHOICES
        assert option.help.endswith("."), option.name


# Their help begins with a choice.
CHOICES = ("--method", "--network", "--recipe")


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_may_be_left_out_say_what_happens_then(name):
    """A value is shown as the default by itself; without one the text has to say it."""
    for option in LOADED[name].params:
        if option.param_type_name == "option" and not option.required and option.default is None:
            assert re.search(r"Default: |Required unless |This or ", option.help), option.name


def test_the_recipes_defaults_are_those_that_train_names():
    text = help_of("train")
    digits, mnist = 1437, 60_000
    rule = Mlp(64, Mlp.HIDDEN, 10).rule()
    epochs = []
    for examples in (digits, mnist):
        batch = default_batch_size(examples, private=True)
        steps = default_steps(examples, batch, rule, private=True)
        epochs.append(f"{steps * batch / examples:.1f}".removesuffix(".0"))
    assert f"({Linear.STEPS}; mlp: {epochs[0]} on digits, {epochs[1]} on mnist)" in text
    largest = default_batch_size(mnist, private=True)
    ordinary = default_batch_size(mnist, private=False)
    head = default_batch_size(10**6, private=True, rule=Linear(1000, 0, 10).rule())
    assert f"up to {head} (mlp, cnn: {largest}; --method none: {ordinary})" in text
    plan = PrivacyPlan(examples=digits, batch_size=digits, epochs=1, noise_multiplier=1.0)
    assert f"set by the recipe, {private_recipe(plan, rule).kl_weight:g}." in text
