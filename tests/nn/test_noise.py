"""Who serves the noise: generators, sampling modes, tapes."""

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import (
    AdditiveLinear,
    BinaryDropoutLinear,
    NoiseTape,
    draw,
    noise_from,
    sampling,
    tape_from,
)
from tests.mechanisms.statistics import ALARM, independence_p_value, normal_p_value

LIKE = torch.empty(0, dtype=torch.float64)


def model() -> nn.Module:
    return nn.Sequential(
        AdditiveLinear(4, 5, log_sigma2=0.0), nn.Tanh(), BinaryDropoutLinear(5, 3), nn.Tanh()
    ).double()


def test_a_draw_has_the_shape_dtype_and_distribution_asked_for(generator: torch.Generator) -> None:
    with noise_from(generator):
        normal = draw((20_000, 2), LIKE)
        uniform = draw((20_000, 2), LIKE.float(), "uniform")
    assert normal.dtype == torch.float64
    assert uniform.dtype == torch.float32
    assert abs(normal.mean().item()) < 0.03
    assert normal.var().item() == pytest.approx(1, abs=0.04)
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.01)


def test_the_same_generator_seed_gives_the_same_noise_and_leaves_the_global_one_alone() -> None:
    net, x = model(), torch.ones(6, 4, dtype=torch.float64)
    before = torch.get_rng_state()
    outputs = []
    for seed in (1, 1, 2):
        with noise_from(torch.Generator().manual_seed(seed)):
            outputs.append(net(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_source_the_global_generator_serves() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = torch.randn(2, 2, dtype=torch.float64)
        torch.manual_seed(3)
        assert torch.equal(draw((2, 2), LIKE), expected)


LARGE = (130, 150)  # normals that a key stream serves


def test_large_draws_are_normal_and_as_reproducible_as_the_generator(
    generator: torch.Generator,
) -> None:
    with noise_from(generator):
        first, second = (draw((600, 700), LIKE.float()) for _ in range(2))
    assert normal_p_value(first, 1.0) > ALARM
    assert independence_p_value(first, second) > ALARM
    assert independence_p_value(first[::2], first[1::2]) > ALARM  # rows are examples
    with torch.random.fork_rng():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        outcomes = [draw(LARGE, LIKE.float()) for _ in range(2)]
        torch.set_rng_state(state)
        assert torch.equal(draw(LARGE, LIKE.float()), outcomes[0])
        assert torch.equal(draw(LARGE, LIKE.float()), outcomes[1])
    assert not torch.equal(*outcomes)


def test_large_draws_are_the_same_without_the_extension_and_on_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, outcomes = torch.get_num_threads(), []
    try:
        for count, native in ((1, "1"), (3, "1"), (1, "0")):
            torch.set_num_threads(count)
            monkeypatch.setenv("DPVD_NATIVE", native)
            with noise_from(torch.Generator().manual_seed(5)):
                outcomes.append(draw((400, 500), LIKE.float()))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])


def test_large_draws_inside_transforms_of_functions_are_torch_s_own() -> None:
    x = torch.ones(3, *LARGE)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (x * draw(x.shape, x)).sum()

    assert torch.func.grad(noisy)(x[0]).std().item() == pytest.approx(1, abs=0.05)
    assert len(torch.func.vmap(noisy, randomness="different")(x).unique()) == 3


def test_sources_nest_and_are_restored_after_an_error(generator: torch.Generator) -> None:
    with noise_from(generator):
        with (
            pytest.raises(RuntimeError, match="inside"),
            noise_from(torch.Generator().manual_seed(1)),
        ):
            raise RuntimeError("inside")
        state = generator.get_state()
        draw((2, 2), LIKE)
        assert not torch.equal(state, generator.get_state())


def test_sampling_overrides_the_mode_of_the_module_and_only_inside() -> None:
    layer, x = AdditiveLinear(4, 5, log_sigma2=0.0), torch.ones(6, 4)
    mean = layer.eval()(x)
    with sampling():
        assert not torch.equal(layer(x), mean)
    assert torch.equal(layer(x), mean)
    layer.train()
    with sampling(False):
        assert torch.equal(layer(x), mean)
        with sampling(True):
            assert not torch.equal(layer(x), mean)
    assert not torch.equal(layer(x), mean)


def test_a_tape_passes_noise_through_and_keeps_it_with_the_standard_deviation(
    generator: torch.Generator,
) -> None:
    net, x, tape = model(), torch.randn(6, 4, generator=generator, dtype=torch.float64), NoiseTape()
    with noise_from(torch.Generator().manual_seed(1)):
        plain = net(x)
    with noise_from(torch.Generator().manual_seed(1)), tape.recording():
        recorded = net(x)
    assert torch.equal(plain, recorded)
    assert [tuple(noise.shape) for noise in tape.draws] == [(6, 5), (6, 5)]
    variance = x.square().sum(1, keepdim=True).expand(6, 5)
    torch.testing.assert_close(tape.aux[0], variance.sqrt())
    assert not tape.aux[0].requires_grad
    assert tape.aux[1] is None


@pytest.mark.parametrize("rows", [slice(2, 3), slice(1, 4), 2, [3, 0], torch.tensor([5]), None, -1])
def test_a_tape_replays_the_noise_of_the_rows_asked_for(
    rows: object, generator: torch.Generator
) -> None:
    net, x, tape = model(), torch.randn(6, 4, generator=generator, dtype=torch.float64), NoiseTape()
    with tape.recording():
        whole = net(x)
    picked = slice(None) if rows is None else [rows] if isinstance(rows, int) else rows
    for _ in range(2):
        with tape.replaying(rows):
            torch.testing.assert_close(net(x[picked]), whole[picked], rtol=0, atol=1e-14)


def test_recording_again_starts_afresh() -> None:
    tape = NoiseTape()
    for size in (2, 3):
        with tape.recording():
            draw((size, 1), LIKE)
    assert [len(noise) for noise in tape.draws] == [3]
    assert len(tape.aux) == 1


def test_replaying_refuses_a_draw_that_was_not_recorded() -> None:
    tape = NoiseTape()
    with tape.recording():
        draw((2, 3), LIKE)
    with tape.replaying():
        draw((2, 3), LIKE)
        with pytest.raises(DpvdError, match="more than the 1 times"):
            draw((2, 3), LIKE)
    with (
        tape.replaying(slice(0, 1)),
        pytest.raises(DpvdError, match=r"shape \(1, 3\).*asks for \(2, 3\)"),
    ):
        draw((2, 3), LIKE)


def test_inside_vmap_every_example_gets_its_own_recorded_noise(generator: torch.Generator) -> None:
    net, x, tape = model(), torch.randn(6, 4, generator=generator, dtype=torch.float64), NoiseTape()
    with tape.recording():
        whole = net(x)
    parameters = dict(net.named_parameters())

    def one(
        parameters: dict[str, torch.Tensor], x: torch.Tensor, draws: list[torch.Tensor]
    ) -> torch.Tensor:
        with tape_from(draws):
            return torch.func.functional_call(net, parameters, x.unsqueeze(0)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(
        parameters, x, tape.draws
    )
    (expected,) = torch.autograd.grad(whole[4].square().sum(), parameters["0.log_sigma2"])
    torch.testing.assert_close(gradients["0.log_sigma2"][4], expected)
