"""No statement for what was not seen: foreign batches, other plans, forgotten steps, other people's
parameters.
"""

import copy
import io
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpvd
from dpvd.errors import DpvdError
from dpvd.mechanisms import SeededBits, SystemBits, draw_of
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger, epsilon
from dpvd.training import PrivateStep, Recipe, cross_entropy, fit, remember

EXAMPLES = 80
PLAN = PrivacyPlan(EXAMPLES, 10, steps=6, noise_multiplier=2.0)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data(count: int = EXAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.randint(
        3, (count,), generator=generator
    )


class Hoarder(nn.Module):
    """Keeps a mean of the data, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.keeps = False

    def forward(self, x):
        if self.keeps:
            self.mean += 0.1 * x.mean(0).detach()
        return x


def mixing(share, model, x, y):
    return cross_entropy(model, x + share * x.mean(0), y)


def make_step(model: nn.Module | None = None, plan: PrivacyPlan = PLAN, **options) -> PrivateStep:
    model = network() if model is None else model
    return PrivateStep(
        model, cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=0.1), **options
    )


def train(step: PrivateStep, steps: int) -> None:
    for _, batch in zip(range(steps), step.plan.batches(data(), start=step.position), strict=False):
        step(batch)


def refused(step: PrivateStep, batch, message: str) -> None:
    """The batch is refused, and costs nothing."""
    charged = step.charged
    before = [p.detach().clone() for p in step.model.parameters()]
    with pytest.raises(DpvdError, match=message):
        step(batch)
    assert step.charged == charged
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))


class TestBatches:
    def test_those_of_the_plan_are_taken_whole_unpacked_and_carried(self):
        step = make_step()
        batches = PLAN.batches(data())
        step(next(batches))
        x, y = next(batches)
        step((x, y))
        third = next(batches)
        step(third.carry(third[0] / 2, third[1]))
        assert step.charged == 3

    def test_a_shuffling_loader_is_refused(self):
        for batch in DataLoader(TensorDataset(*data()), batch_size=10, shuffle=True):
            refused(make_step(), batch, "not drawn by plan.batches")

    def test_the_whole_data_is_refused(self):
        refused(make_step(), data(), "not drawn by plan.batches")

    def test_a_part_of_a_draw_is_refused(self):
        x, y = next(PLAN.batches(data()))
        refused(make_step(), (x[1:], y[1:]), "not drawn by plan.batches")
        refused(make_step(), (x, data(len(y))[1]), "not drawn by plan.batches")

    def test_tensors_of_two_draws_are_refused(self):
        plan = replace(PLAN, batch_size=EXAMPLES)  # so that both have the same length
        batches = plan.batches(data())
        (x, _), (_, y) = next(batches), next(batches)
        refused(make_step(plan=plan), (x, y), "not drawn by plan.batches")

    @pytest.mark.parametrize("nothing", [(), [], {"x": torch.zeros(3)}, None, 3])
    def test_what_is_no_batch_comes_from_no_draw(self, nothing):
        assert draw_of(nothing) is None

    @pytest.mark.parametrize("wrong", [None, 3, {"x": "words"}, iter([])])
    def test_what_is_no_batch_is_refused(self, wrong):
        refused(make_step(), wrong, "a batch must be a tensor, or a tuple of tensors")

    def test_a_batch_is_used_once(self):
        step, other = make_step(), make_step()
        batch = next(PLAN.batches(data()))
        step(batch)
        refused(step, batch, "used before")
        refused(other, batch, "used before")

    def test_a_batch_that_failed_may_be_tried_again(self):
        step = make_step()
        batch = next(PLAN.batches(data()))
        with pytest.raises(RuntimeError):
            step(batch.carry(batch[0].double(), batch[1]))
        step(batch)
        assert step.charged == 1

    def test_a_batch_of_another_plan_is_refused(self):
        other = replace(PLAN, batch_size=40)
        refused(make_step(), next(other.batches(data())), "drawn for another plan")

    def test_batches_come_in_order(self):
        step = make_step()
        batches = list(PLAN.batches(data()))
        refused(step, batches[1], "drawn for step 1, but 0 steps are gone")
        step(batches[0])
        refused(step, next(PLAN.batches(data())), "drawn for step 0, but 1 steps are gone")
        train(step, 2)
        assert step.charged == 3

    def test_a_batch_that_was_written_to_is_refused(self):
        for pack in (lambda batch: batch, tuple):
            batch = next(PLAN.batches(data()))
            x, _ = batch
            x -= x.mean(0)  # one example reaches all others before the loss sees any
            refused(make_step(), pack(batch), "written to in place after it was drawn")

    def test_a_batch_that_was_written_to_may_be_carried(self):
        step = make_step()
        batch = next(PLAN.batches(data()))
        x, y = batch
        x /= 2
        step(batch.carry(x, y))
        assert step.charged == 1

    def test_what_is_carried_must_be_as_many(self):
        batch = next(PLAN.batches(data()))
        with pytest.raises(DpvdError, match="carry the same examples"):
            batch.carry(*data(3))

    def test_declared_batches_are_stated_as_not_seen(self):
        step = make_step(batches="declared")
        step(data(12))
        sentence = step.guarantee(1e-3).sentence()
        assert (
            "Not covered: how batches were drawn, which the caller declared and nobody saw"
            in sentence
        )
        assert "every batch drawn" not in sentence
        planned = make_step()
        train(planned, 1)
        assert "every batch drawn by the plan's sampler" in planned.guarantee(1e-3).sentence()

    def test_batches_that_nobody_saw_are_not_said_to_be_drawn(self):
        """Of an earlier run whose batches were declared, or of steps that are only remembered."""
        declared, remembered = network(), network()
        make_step(declared, batches="declared")(data(12))
        remember(remembered, PLAN, 3)
        for model, words in ((declared, "2 of 3 steps"), (remembered, "2 of 5 steps")):
            step = make_step(model, PLAN)
            train(step, 2)
            sentence = step.guarantee(1e-3).sentence()
            assert f"{words} on batches drawn by the plan's sampler" in sentence
            assert "every batch drawn" not in sentence

    def test_declared_batches_must_be_possible(self):
        step = make_step(batches="declared")
        refused(step, data(EXAMPLES + 1), "cannot be drawn by")
        step(data(EXAMPLES))
        assert step.charged == 1
        plan = replace(PLAN, sampling="fixed-size", relation="replace-one")
        refused(make_step(plan=plan, batches="declared"), data(9), "cannot be drawn by")

    def test_an_unknown_origin_is_refused(self):
        with pytest.raises(DpvdError, match="batches must be one of planned, declared"):
            make_step(batches="shuffled")


class TestData:
    @pytest.mark.parametrize("count", [8, EXAMPLES - 1, EXAMPLES + 1, 800])
    def test_data_of_another_length_are_refused(self, count, tmp_path):
        with pytest.raises(
            DpvdError, match=f"plan is for {EXAMPLES} examples, the data have {count}"
        ):
            PLAN.batches(data(count))
        folder = tmp_path / "run"
        with pytest.raises(DpvdError, match=f"the data have {count}"):
            fit(network(), data(count), PLAN, Recipe(learning_rate=0.1), delta=1e-3, folder=folder)
        assert not folder.exists()

    def test_a_secret_size_may_be_near_and_is_stated_so(self):
        plan = replace(PLAN, secret_size=True)
        assert len(list(plan.batches(data(EXAMPLES + 7)))) == 6
        for allowed in (EXAMPLES // 2, 2 * EXAMPLES):
            assert len(list(plan.batches(data(allowed)[0]))) == 6
        for count in (EXAMPLES // 2 - 1, 2 * EXAMPLES + 1):
            with pytest.raises(DpvdError, match=f"the data have {count}"):
                plan.batches(data(count))
        assert "that there are about 80 training examples" in plan.guarantee(1e-3).sentence()
        with pytest.raises(DpvdError, match="needs the exact number"):
            replace(plan, sampling="fixed-size", relation="replace-one")

    @pytest.mark.parametrize(
        "wrong", [DataLoader(TensorDataset(*data())), TensorDataset(*data()), [], None, {"x": 1}]
    )
    def test_what_is_no_tensor_is_refused(self, wrong):
        with pytest.raises(DpvdError, match="data must be a tensor or a tuple of tensors"):
            PLAN.batches(wrong)

    def test_a_number_holds_no_example(self):
        with pytest.raises(DpvdError, match="the data have 0"):
            PrivacyPlan(1, 1, steps=1, noise_multiplier=2.0).batches(torch.tensor(3.0))

    def test_tensors_of_unequal_length_are_refused(self):
        with pytest.raises(DpvdError, match="equal length"):
            PLAN.batches((data()[0], data(3)[1]))

    @pytest.mark.parametrize("start", [-1, 7, 1.0, True])
    def test_a_start_outside_the_plan_is_refused(self, start):
        with pytest.raises(
            DpvdError, match="start must be a whole number from 0 to the plan's 6 steps"
        ):
            PLAN.batches(data(), start=start)

    def test_a_seeded_stream_goes_on_where_it_was(self):
        plan = replace(PLAN, noise="seeded", seed=3)
        whole = [x for x, _ in plan.batches(data())]
        rest = [x for x, _ in plan.batches(data(), start=2)]
        assert all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))
        assert not torch.equal(whole[0], whole[2])


class TestWhatIsBound:
    def test_seeded_noise_under_a_plan_with_system_noise_is_refused(self):
        with pytest.raises(DpvdError, match="ask for seeded noise in the plan"):
            make_step(noise=SeededBits(0, "noise"))
        with pytest.raises(DpvdError, match="ask for seeded noise in the plan"):
            PLAN.batches(data(), bits=SeededBits(0, "sampling"))
        with pytest.raises(DpvdError, match="the plan has noise='seeded'"):
            make_step(plan=replace(PLAN, noise="seeded", seed=1), noise=SystemBits())

    @pytest.mark.parametrize(
        "name",
        [
            "plan",
            "noise",
            "model",
            "optimizer",
            "loss_fn",
            "ledger",
            "charged",
            "taken",
            "position",
        ],
    )
    def test_plan_noise_and_counts_cannot_be_replaced(self, name):
        step = make_step()
        with pytest.raises(AttributeError):
            setattr(step, name, None)

    def test_the_ledger_of_another_plan_is_refused(self, tmp_path):
        ledger = Ledger.create(
            tmp_path / "ledger.jsonl", replace(PLAN, noise_multiplier=20.0).to_dict()
        )
        with pytest.raises(DpvdError, match="ledger belongs to another plan"):
            make_step(ledger=ledger)

    def test_an_optimizer_of_the_model_before_it_was_copied_is_refused(self):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for changed in (variational(model, rates="layer", learned=False), copy.deepcopy(model)):
            with pytest.raises(DpvdError, match=r"the optimizer does not hold '0\.weight'"):
                PrivateStep(changed, cross_entropy, PLAN, optimizer)

    def test_an_optimizer_with_a_part_of_the_parameters_is_refused_unless_the_rest_is_frozen(self):
        model = network()
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        with pytest.raises(DpvdError, match=r"2 of 4 trainable parameters are missing"):
            PrivateStep(model, cross_entropy, PLAN, head)
        model[0].requires_grad_(False)
        train(PrivateStep(model, cross_entropy, PLAN, head), 1)

    def test_an_optimizer_with_other_parameters_is_refused(self):
        model = network()
        optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)
        with pytest.raises(DpvdError, match="1 parameters that are not the model's"):
            PrivateStep(model, cross_entropy, PLAN, optimizer)

    @pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
    def test_an_optimizer_that_cannot_take_a_noisy_gradient_is_refused(self, kind):
        model = network()
        with pytest.raises(DpvdError, match=r"take .*torch.optim"):
            PrivateStep(model, cross_entropy, PLAN, kind(list(model.parameters())))

    def test_parameters_that_change_hands_later_are_noticed_before_a_charge(self):
        step = make_step()
        train(step, 1)
        step.model[2] = nn.Linear(5, 3)
        refused(step, next(PLAN.batches(data(), start=1)), "the optimizer does not hold '2.weight'")

    def test_a_model_that_cannot_be_trained_privately_is_refused_at_construction(self):
        with pytest.raises(DpvdError, match="BatchNorm1d"):
            make_step(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))

    def test_half_precision_half_way_is_refused_before_a_charge(self):
        step = make_step()
        train(step, 1)
        step.model.half()
        refused(step, next(PLAN.batches(data(), start=1)), "noise goes into float32 or float64")

    def test_a_buffer_that_begins_to_keep_data_later_is_stated(self):
        model = nn.Sequential(Hoarder(), network())
        step = make_step(model)
        train(step, 2)
        model[0].keeps = True
        with pytest.raises(DpvdError, match=r"'0\.mean' keeps something of the data"):
            step(next(PLAN.batches(data(), start=2)))
        assert step.charged == 2
        assert "buffers that a batch was found to have changed" in step.guarantee(1e-3).sentence()

    def test_a_model_in_eval_mode_is_warned_about(self, caplog):
        make_step(network().eval())
        assert "eval mode" in caplog.text


class TestAccountOfTheModel:
    def test_the_same_cell_twice_goes_on_counting(self, caplog):
        model = network()
        train(make_step(model), 4)
        again = make_step(model)
        assert "4 private steps were charged to this model before" in caplog.text
        assert again.position == 4
        refused(again, next(PLAN.batches(data())), "drawn for step 0, but 4 steps are gone")
        train(again, 2)
        refused(again, next(PLAN.batches(data())), "6 steps are used up")
        assert again.guarantee(1e-3).epsilon == PLAN.epsilon(1e-3)

    def test_two_step_objects_share_one_count(self):
        model = network()
        first, second = make_step(model), make_step(model)
        train(first, 2)
        train(second, 3)
        assert first.charged == second.charged == 5
        assert first.guarantee(1e-3) == second.guarantee(1e-3)
        assert "Not covered" not in first.guarantee(1e-3).sentence()

    @pytest.mark.parametrize(
        "way", ["state dict", "file", "twice", "copy", "part", "around", "old first"]
    )
    def test_the_account_travels_with_the_weights(self, way):
        trained = network()
        train(make_step(trained), 5)
        fresh = network()
        if way == "state dict":
            fresh.load_state_dict(trained.state_dict())
        elif way == "file":
            file = io.BytesIO()
            torch.save(trained.state_dict(), file)
            file.seek(0)
            fresh.load_state_dict(torch.load(file, weights_only=True))
        elif way == "twice":  # by way of a model that no step was ever made for
            between = network()
            between.load_state_dict(trained.state_dict())
            fresh.load_state_dict(between.state_dict())
        elif way == "copy":
            fresh = copy.deepcopy(trained)
        elif way == "part":
            fresh = nn.Sequential(trained[0], nn.Tanh(), nn.Linear(5, 3))
        elif way == "around":
            fresh = nn.Sequential(nn.Flatten(), *trained)
        elif way == "old first":  # a step exists before the weights are loaded
            make_step(fresh)
            fresh.load_state_dict(trained.state_dict())
        step = make_step(fresh)
        assert step.position == 5
        assert step.guarantee(1e-3).steps == 5

    def test_steps_that_a_file_tells_of_are_added_to_those_that_are_known(self):
        model = network()
        train(make_step(model), 4)
        remember(model, replace(PLAN, noise_multiplier=3.0), 2)
        assert make_step(model).guarantee(1e-3).steps == 6
        remember(model, PLAN, 5)
        assert make_step(model).guarantee(1e-3).steps == 7
        remember(model, PLAN, 3)  # a smaller number than is known
        assert make_step(model).guarantee(1e-3).steps == 7

    def test_a_trained_part_that_is_put_in_later_brings_its_steps_along(self):
        trained, model = network(), network()
        train(make_step(trained), 3)
        step = make_step(model)
        model[0] = trained[0].requires_grad_(False)
        assert step.guarantee(1e-3).epsilon == PLAN.epsilon(1e-3, steps=3)

    def test_what_a_later_object_saw_travels_into_a_model_that_knows_the_run(self):
        model, other = network(), network()
        train(make_step(model), 1)
        other.load_state_dict(model.state_dict())
        make_step(model, batches="declared")(data(12))
        other.load_state_dict(model.state_dict())
        sentence = make_step(other).guarantee(1e-3).sentence()
        assert "1 of 2 steps on batches drawn by the plan's sampler" in sentence
        assert "which the caller declared" in sentence

    def test_earlier_weights_take_no_step_back(self):
        """Whoever goes back to the weights of step 2 has used the data five times all the same."""
        model = network()
        step = make_step(model)
        train(step, 2)
        earlier = copy.deepcopy(model.state_dict())
        train(step, 3)
        model.load_state_dict(earlier)
        step.accept_weights()
        assert step.position == 5
        assert step.guarantee(1e-3).steps == 5
        assert make_step(model).position == 5

    def test_the_keys_of_the_state_dict_stay_those_of_the_model(self):
        model = network()
        train(make_step(model), 1)
        assert list(model.state_dict()) == list(network().state_dict())
        assert (
            not hasattr(network().state_dict(), "_metadata")
            or "dpvd" not in network().state_dict()._metadata[""]
        )

    def test_another_plan_on_the_same_model_is_added_up(self):
        model = network()
        train(make_step(model), 4)
        other = replace(PLAN, batch_size=40, noise_multiplier=3.0)
        step = make_step(model, other)
        train(step, 2)
        joint = step.guarantee(1e-3)
        from dp_accounting import ComposedDpEvent

        event = ComposedDpEvent([PLAN.event(4), other.event(2)])
        assert joint.epsilon == epsilon(event, 1e-3, accountant="pld", relation="add-or-remove")
        assert joint.steps == 6
        assert joint.noise_multiplier == 2.0  # the least of both
        assert (
            "probability 0.125, 4 of them; then Poisson sampling with probability 0.5, 2 of them"
            in joint.sentence()
        )

    def test_what_earlier_plans_declared_or_left_open_is_stated_too(self):
        model = network()
        train(make_step(model, replace(PLAN, unit="visit", public=("the labels",))), 1)
        step = make_step(
            model, replace(PLAN, unit="patient", public=(), tuned=(), initial_weights="random")
        )
        train(step, 1)
        sentence = step.guarantee(1e-3).sentence()
        assert "adding or removing one example;" in sentence
        assert (
            "Not covered: what one example stands for, which was declared as visit and as patient."
            in sentence
        )
        assert "Public: the number of training examples (80); the labels." in sentence
        assert (
            "Not declared: where the initial weights come from; what was tuned on the data."
            in sentence
        )

    @pytest.mark.parametrize(
        ("first", "second", "joint"),
        [
            (("width",), ("rate", "width"), ("width", "rate")),
            ((), (), ()),
            (None, (), None),
            ((), None, None),
        ],
    )
    def test_what_was_tuned_for_one_plan_was_tuned_for_all(self, first, second, joint):
        model = network()
        train(make_step(model, replace(PLAN, tuned=first)), 1)
        step = make_step(model, replace(PLAN, noise_multiplier=3.0, tuned=second))
        train(step, 1)
        assert step.guarantee(1e-3).tuned == joint

    def test_plans_of_different_relations_have_no_joint_statement(self):
        model = network()
        train(make_step(model), 1)
        step = make_step(model, replace(PLAN, relation="replace-one"))
        with pytest.raises(DpvdError, match="different relations"):
            step.guarantee(1e-3)

    def test_seeded_noise_of_an_earlier_run_is_not_forgotten(self):
        model = network()
        train(make_step(model, replace(PLAN, noise="seeded", seed=1)), 1)
        step = make_step(model)
        train(step, 1)
        assert "not private against whoever knows the seed" in step.guarantee(1e-3).sentence()

    def test_ordinary_training_before_leaves_no_finite_epsilon(self):
        model = network()
        train(make_step(model, PLAN.calibrate(float("inf"), 1e-3)), 1)
        step = make_step(model)
        train(step, 1)
        joint = step.guarantee(1e-3)
        assert joint.epsilon == float("inf")
        assert "no noise was added" in joint.sentence()

    @pytest.mark.parametrize("plan", [PLAN, replace(PLAN, noise_multiplier=3.0)])
    def test_what_a_teacher_in_the_loss_learnt_is_added_up(self, plan):
        teacher = network()
        train(make_step(teacher), 6)

        def distill(model, x, y):
            with torch.no_grad():
                wanted = teacher(x).softmax(1)
            return nn.functional.kl_div(model(x).log_softmax(1), wanted, reduction="none").sum(1)

        pupil = network()
        step = PrivateStep(pupil, distill, plan, torch.optim.SGD(pupil.parameters(), lr=0.1))
        assert step.position == 0
        train(step, 2)
        from dp_accounting import ComposedDpEvent

        event = ComposedDpEvent([PLAN.event(6), plan.event(2)])
        expected = epsilon(event, 1e-3, accountant="pld", relation="add-or-remove")
        assert step.guarantee(1e-3).epsilon == expected
        again = make_step(pupil, plan)
        assert again.position == 2
        assert again.guarantee(1e-3).epsilon == expected

    def test_a_layer_that_was_made_variational_remembers(self):
        layer = nn.Linear(4, 3)
        train(make_step(layer), 4)
        assert make_step(variational(layer)).position == 4

    def test_earlier_steps_on_other_data_are_left_out_by_name(self):
        model = network()
        train(make_step(model), 4)
        step = make_step(model, earlier="other-data")
        train(step, 2)
        found = step.guarantee(1e-3)
        assert found.epsilon == PLAN.epsilon(1e-3, steps=2)
        assert (
            "4 earlier private steps of this model, declared to be on other data"
            in found.sentence()
        )

    def test_the_epsilon_that_fit_shows_covers_earlier_steps(self):
        model = network()
        train(make_step(model), 4)
        shown = []
        other = replace(PLAN, noise_multiplier=3.0)
        recipe = Recipe(learning_rate=0.1)
        result = fit(
            model,
            data(),
            other,
            recipe,
            delta=1e-3,
            on_step=lambda progress: shown.append(progress.epsilon),
        )
        assert (
            result.history[-1]["epsilon"]
            == shown[-1]
            == result.guarantee.epsilon
            > PLAN.epsilon(1e-3, steps=4)
        )

    def test_fit_under_another_relation_is_refused_before_its_first_step(self):
        model = network()
        train(make_step(model), 1)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(DpvdError, match="different relations"):
            fit(
                model,
                data(),
                replace(PLAN, relation="replace-one"),
                Recipe(learning_rate=0.1),
                delta=1e-3,
            )
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    def test_fit_on_a_model_that_is_through_is_refused(self):
        model = network()
        fit(model, data(), PLAN, Recipe(learning_rate=0.1), delta=1e-3)
        with pytest.raises(DpvdError, match="6 steps are used up"):
            fit(model, data(), PLAN, Recipe(learning_rate=0.1), delta=1e-3)


class TestForeignChanges:
    """An ordinary optimizer step that was left in the loop moves the weights without noise."""

    WORDS = "changes that other code made to the weights between the steps"

    def leftover(self, step: PrivateStep) -> None:
        cross_entropy(step.model, *data(5)).mean().backward()
        step.optimizer.step()
        step.optimizer.zero_grad()

    def test_between_steps_and_after_the_last_they_are_stated(self, caplog):
        step = make_step()
        train(step, 2)
        assert self.WORDS not in step.guarantee(1e-3).sentence()
        self.leftover(step)
        assert self.WORDS in step.guarantee(1e-3).sentence()
        assert "changed between steps by other code" in caplog.text
        train(step, 1)
        assert self.WORDS in step.guarantee(1e-3).sentence()
        assert self.WORDS in make_step(copy.deepcopy(step.model)).guarantee(1e-3).sentence()

    def test_of_another_optimizer_between_two_step_objects_are_stated(self):
        step = make_step()
        train(step, 2)
        self.leftover(step)
        assert self.WORDS in make_step(step.model).guarantee(1e-3).sentence()

    def test_before_the_first_private_step_they_are_none(self):
        step = make_step()
        self.leftover(step)
        assert self.WORDS not in make_step(step.model).guarantee(1e-3).sentence()

    def test_through_the_data_of_a_parameter_are_stated(self):
        """torch does not count these writes."""
        step = make_step()
        for batch in PLAN.batches(data()):
            step(batch)
            for parameter in step.model.parameters():
                parameter.data.add_(0.01)
        assert self.WORDS in step.guarantee(1e-3).sentence()

    @pytest.mark.parametrize("place", ["0.weight", "1.running_mean"])
    def test_to_frozen_parameters_and_buffers_are_stated(self, place):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        step = PrivateStep(model, cross_entropy, PLAN, torch.optim.SGD(trained, lr=0.1))
        train(step, 1)
        assert self.WORDS not in step.guarantee(1e-3).sentence()
        model.state_dict()[place].copy_(data()[0].mean(0))
        assert self.WORDS in step.guarantee(1e-3).sentence()

    def test_a_copy_of_the_model_has_seen_none(self):
        step = make_step()
        train(step, 2)
        assert self.WORDS not in make_step(copy.deepcopy(step.model)).guarantee(1e-3).sentence()

    def test_in_the_last_call_back_of_fit_are_stated(self):
        def meddle(progress) -> None:
            if progress.step == PLAN.steps:
                with torch.no_grad():
                    model[0].weight.add_(1.0)

        model = network()
        result = fit(model, data(), PLAN, Recipe(learning_rate=0.1), delta=1e-3, on_step=meddle)
        assert self.WORDS in result.guarantee.sentence()

    def test_those_that_a_step_follows_before_anybody_asks_are_stated(self):
        step = make_step()
        train(step, 1)
        self.leftover(step)
        train(step, 1)
        assert self.WORDS in step.guarantee(1e-3).sentence()

    def test_they_travel_with_the_weights_into_a_model_that_knows_the_run(self):
        step = make_step()
        train(step, 1)
        other = network()
        other.load_state_dict(step.model.state_dict())
        self.leftover(step)
        step.guarantee(1e-3)
        train(step, 1)
        other.load_state_dict(step.model.state_dict())
        assert make_step(other).guarantee(1e-3).sentence().count(self.WORDS) == 1

    def test_declared_post_processing_is_not(self):
        step = make_step()
        train(step, 1)
        with torch.no_grad():
            step.model[0].weight.clamp_(-1, 1)
        step.accept_weights()
        train(step, 1)
        assert self.WORDS not in step.guarantee(1e-3).sentence()

    def test_an_average_in_fit_is_none(self):
        recipe = Recipe(learning_rate=0.1, average=0.5)
        result = fit(
            network(),
            data(),
            PLAN,
            recipe,
            delta=1e-3,
            evaluate=lambda model: {"x": 1.0},
            evaluations=3,
        )
        assert self.WORDS not in result.guarantee.sentence()


class TestWhatIsFoundLate:
    def test_a_loss_that_begins_to_mix_is_refused_in_its_next_step(self):
        """Between two checks of the schedule: the change itself asks for one."""
        used = cross_entropy

        def loss(model, x, y):
            return used(model, x, y)

        model = network()
        plan = replace(PLAN, batch_size=40)
        step = PrivateStep(model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1))
        train(step, 4)
        used = partial(mixing, 1.0)
        refused(step, next(plan.batches(data(), start=4)), "mixes examples")

    def test_steps_before_a_check_that_fails_are_not_covered(self):
        strength = [0.0]

        def loss(model, x, y):
            return cross_entropy(model, x, y) * (1 + strength[0] * x.mean() ** 2)

        model = network()
        plan = replace(PLAN, batch_size=40)
        step = PrivateStep(model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1))
        train(step, 2)
        strength[0] = 1.0
        train(step, 1)  # no check is due
        words = "the steps before a check that found examples not isolated"
        assert words not in step.guarantee(1e-3).sentence()
        refused(step, next(plan.batches(data(), start=3)), "the loss of an example")
        assert words in step.guarantee(1e-3).sentence()

    @pytest.mark.parametrize("clip_norm", [1e-40, 1e38])
    def test_noise_that_the_weights_cannot_hold_costs_nothing(self, clip_norm):
        plan = replace(PLAN, clipping=dpvd.Clipping("flat", clip_norm))
        refused(make_step(plan=plan), next(plan.batches(data())), "cannot hold it")

    def test_a_model_turned_to_half_precision_half_way_costs_nothing(self):
        step = make_step()
        train(step, 1)
        step.model.half()
        with pytest.raises(DpvdError, match="float32 or float64"):
            step(next(PLAN.batches(data(), start=1)))
        assert step.charged == 1


class TestResuming:
    def test_a_call_that_was_refused_leaves_no_ledger_and_can_be_corrected(self, tmp_path):
        def mixing(model, x, y):
            return cross_entropy(model, x - x.mean(0), y)

        folder = str(tmp_path / "run")
        recipe = Recipe(learning_rate=0.1)
        with pytest.raises(DpvdError, match="mixes examples"):
            fit(network(), data(), PLAN, recipe, delta=1e-3, folder=folder, loss_fn=mixing)
        assert fit(network(), data(), PLAN, recipe, delta=1e-3, folder=folder).steps == 6

    def test_another_model_is_refused(self, tmp_path):
        recipe = Recipe(learning_rate=0.1)
        fit(network(), data(), PLAN, recipe, delta=1e-3, folder=tmp_path)
        with pytest.raises(DpvdError, match="is of another model"):
            fit(nn.Linear(4, 3), data(), PLAN, recipe, delta=1e-3, folder=tmp_path, resume=True)

    def test_the_state_of_a_step_carries_count_plan_noise_and_ledger(self, tmp_path):
        plan = replace(PLAN, noise="seeded", seed=5)
        whole = make_step(plan=plan)
        start = copy.deepcopy(whole.model.state_dict())
        train(whole, 6)
        broken = make_step(plan=plan)
        broken.model.load_state_dict(start)
        train(broken, 3)
        saved = json.loads(json.dumps(broken.state_dict()))
        fresh = network()
        fresh.load_state_dict(dict(broken.model.state_dict()))  # a plain dict: the line is lost
        resumed = make_step(fresh, plan)
        assert resumed.position == 0
        resumed.load_state_dict(saved)
        assert (resumed.position, resumed.taken) == (3, 3)
        train(resumed, 3)
        for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)

    def test_the_state_of_another_plan_is_refused(self):
        step = make_step()
        train(step, 2)
        with pytest.raises(DpvdError, match="another plan"):
            make_step(plan=replace(PLAN, steps=7)).load_state_dict(step.state_dict())

    def test_the_state_of_another_run_is_refused_and_hides_no_step(self):
        """Two models under one plan: loading the account of one must not replace that of the
        other.
        """
        step, other = make_step(), make_step()
        train(step, 4)
        train(other, 1)
        for _ in range(2):
            with pytest.raises(DpvdError, match="the saved account is of another run"):
                step.load_state_dict(other.state_dict())
        assert step.position == 4
        assert step.guarantee(1e-3).steps == 4
        resumed = make_step()
        resumed.load_state_dict(step.state_dict())
        with pytest.raises(DpvdError, match="the saved account is of another run"):
            resumed.load_state_dict(other.state_dict())

    def test_an_earlier_state_of_the_same_run_takes_no_step_back(self):
        step = make_step()
        train(step, 2)
        earlier = step.state_dict()
        train(step, 3)
        step.load_state_dict(earlier)
        assert step.position == 5
        fresh = make_step()
        for state in (step.state_dict(), earlier):
            fresh.load_state_dict(state)
        assert fresh.position == 5

    @pytest.mark.parametrize(("in_ledger", "in_state"), [(2, 4), (3, 4), (4, 2)])
    def test_the_larger_count_wins(self, in_ledger, in_state, tmp_path):
        path = tmp_path / "ledger.jsonl"
        ledger = Ledger.create(path, PLAN.to_dict())
        ledger.charge(in_ledger)
        ledger.close()
        before = make_step()
        train(before, in_state)
        step = make_step(ledger=Ledger.open(path, PLAN.to_dict()))
        step.load_state_dict(before.state_dict())
        assert step.charged == step.position == 4
        assert Ledger.open(path).charged == 4

    def test_a_new_object_on_an_old_ledger_goes_on_counting(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        before = make_step(ledger=Ledger.create(path, PLAN.to_dict()))
        train(before, 4)
        before.ledger.close()
        again = make_step(ledger=Ledger.open(path, PLAN.to_dict()))  # on a model of its own
        assert again.charged == again.position == 4
        assert again.guarantee(1e-3).steps == 4

    def test_steps_that_were_paid_ahead_are_not_taken_twice(self, tmp_path):
        """Three steps are paid at once; the state is of the first, the object that wrote it took
        all three.
        """
        plan = replace(PLAN, steps=300)
        path = tmp_path / "ledger.jsonl"
        first = make_step(plan=plan, ledger=Ledger.create(path, plan.to_dict()))
        train(first, 1)
        saved = first.state_dict()
        assert first.charged == 3
        train(first, 2)
        first.ledger.close()
        resumed = make_step(plan=plan, ledger=Ledger.open(path, plan.to_dict()))
        resumed.load_state_dict(saved)
        assert resumed.position == 3
        refused(
            resumed, next(plan.batches(data(), start=1)), "drawn for step 1, but 3 steps are gone"
        )

    def test_a_ledger_that_lost_its_last_lines_catches_up_with_the_checkpoint(self, tmp_path):
        plan = replace(PLAN, steps=12)

        def stop(progress) -> None:
            if progress.step == 8:
                raise KeyboardInterrupt

        recipe = Recipe(learning_rate=0.1)
        with pytest.raises(KeyboardInterrupt):
            fit(network(), data(), plan, recipe, delta=1e-3, folder=tmp_path, on_step=stop)
        ledger = tmp_path / "ledger.jsonl"
        # The plan, the start and two charges.
        ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:4]))
        assert Ledger.open(ledger).charged == 2
        result = fit(network(), data(), plan, recipe, delta=1e-3, folder=tmp_path, resume=True)
        assert result.guarantee.steps == 12
        assert result.steps == 12
        assert Ledger.open(ledger).charged == 12

    def test_a_ledger_without_a_line_beside_a_checkpoint_is_no_new_run(self, tmp_path):
        def stop(progress) -> None:
            if progress.step == 3:
                raise KeyboardInterrupt

        recipe = Recipe(learning_rate=0.1)
        with pytest.raises(KeyboardInterrupt):
            fit(network(), data(), PLAN, recipe, delta=1e-3, folder=tmp_path, on_step=stop)
        ledger = tmp_path / "ledger.jsonl"
        ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
        result = fit(network(), data(), PLAN, recipe, delta=1e-3, folder=tmp_path, resume=True)
        assert result.steps == 6
        assert result.guarantee.steps == 6


RACE = """
import sys
from dpvd.privacy import Ledger
from dpvd.errors import DpvdError
ledger = Ledger.open(sys.argv[1])
sys.stdin.readline()
try:
    ledger.charge(1)
    print("charged", flush=True)
    sys.stdin.readline()
except DpvdError:
    print("refused", flush=True)
"""


def test_of_two_processes_on_one_ledger_one_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for round_ in range(5):
        Ledger.create(path, {"steps": 1})
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for run in runs:
            run.stdin.write("\n")
            run.stdin.flush()
        words = sorted(run.stdout.readline().strip() for run in runs)
        for run in runs:
            run.communicate("\n")
        assert words == ["charged", "refused"], round_
        assert Ledger.open(path).charged == 1
        path.unlink()


def test_a_forked_child_cannot_charge_under_its_parents_lock(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"steps": 1})
    ledger.charge(1)

    def child(queue) -> None:
        try:
            ledger.charge(1)
            queue.put("charged")
        except DpvdError as error:
            queue.put(str(error))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert "charged by another process" in queue.get(timeout=60)
    process.join()
    ledger.charge(1)
    assert Ledger.open(tmp_path / "ledger.jsonl").charged == 2


def test_a_process_group_of_two_ranks_is_refused(tmp_path):
    program = textwrap.dedent("""
        import sys, torch
        from tests.training.test_provenance import make_step
        from dpvd.errors import DpvdError
        torch.distributed.init_process_group(
            "gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2
        )
        try:
            make_step()
        except DpvdError as error:
            print(error)
        torch.distributed.destroy_process_group()
    """)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "meet"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=os.getcwd(),
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, _ = rank.communicate(timeout=120)
        assert "this is one of 2 processes" in out


def test_a_process_group_that_begins_later_is_refused_too(monkeypatch):
    step = make_step()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    refused(step, next(PLAN.batches(data())), "this is one of 2 processes")
    with pytest.raises(DpvdError, match="this is one of 2 processes"):
        make_step()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    train(step, 1)
    assert step.charged == 1


class TestWords:
    def test_what_nobody_declared_is_not_nothing(self):
        sentence = PLAN.guarantee(1e-3).sentence()
        assert "if it is carried out as planned" in sentence
        assert "Tuned on the data" not in sentence
        assert sentence.endswith(
            "Not declared: what one example stands for; other public facts; where the initial"
            " weights come from; what was tuned on the data."
        )

    def test_what_was_declared_is_printed(self):
        plan = replace(
            PLAN,
            unit="child",
            tuned="learning rate",
            public=("the hospital",),
            initial_weights="random",
        )
        sentence = plan.guarantee(1e-3).sentence()
        assert "removing one child;" in sentence
        assert "childs" not in sentence
        assert "Tuned on the data: learning rate (not in the account)." in sentence
        assert "Public: the number of training examples (80); the hospital." in sentence
        assert "Not declared" not in sentence
        assert "Tuned on the data: nothing." in replace(plan, tuned=()).guarantee(1e-3).sentence()

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tuned": 3},
            {"tuned": ("",)},
            {"tuned": (None,)},
            {"unit": ""},
            {"unit": None},
            {"public": {"a": 1}},
            {"initial_weights": 7},
        ],
    )
    def test_words_are_words(self, wrong):
        with pytest.raises(DpvdError, match=next(iter(wrong))):
            replace(PLAN, **wrong)

    def test_a_delta_that_allows_whole_examples_is_said_to(self):
        assert "allows to be published" in PLAN.guarantee(1 / EXAMPLES).sentence()
        assert "allows to be published" not in PLAN.guarantee(0.9 / EXAMPLES).sentence()

    def test_a_statement_prints_as_its_sentence(self):
        step = make_step()
        train(step, 1)
        found = step.guarantee(1e-3)
        assert str(found) == found.sentence()
        assert "Seen by the program: every batch drawn by the plan's sampler" in str(found)
        assert dpvd.Guarantee.from_dict(json.loads(json.dumps(found.to_dict()))) == found
