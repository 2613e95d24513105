"""Checks on data, checksums, per-example preprocessing and the names of data sets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpvd import data
from dpvd.data import Dataset, flatten, prepare, unit_norm, validate
from dpvd.data.dataset import checksum
from dpvd.errors import DpvdError

GOOD_X, GOOD_Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 1])


def toy(**changes: object) -> Dataset:
    parts = {"train_x": GOOD_X, "train_y": GOOD_Y, "test_x": GOOD_X[:2], "test_y": GOOD_Y[:2]}
    return Dataset(**{"name": "toy", "classes": 3, "preprocessing": "none", **parts, **changes})


class TestValidate:
    @pytest.mark.parametrize(
        "x", [GOOD_X, GOOD_X.double(), torch.zeros(4, 2, 2, dtype=torch.uint8)]
    )
    def test_good_data_passes(self, x: torch.Tensor) -> None:
        assert validate(x, GOOD_Y, 3) is None

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_values_that_are_no_numbers_are_counted_by_row(self, bad: float) -> None:
        x = torch.zeros(5, 2, 2)
        x[1, 0, 1] = x[1, 1, 1] = x[4, 0, 0] = bad
        with pytest.raises(
            DpvdError, match="2 of 5 rows of the inputs contain NaN or infinity, first row 1"
        ):
            validate(x, torch.zeros(5, dtype=torch.int64), 2)

    def test_huge_finite_values_pass(self) -> None:
        assert validate(torch.full((4, 3), 3e38), GOOD_Y, 3) is None

    @pytest.mark.parametrize("label", [-1, 3])
    def test_labels_out_of_range_are_counted(self, label: int) -> None:
        with pytest.raises(DpvdError, match="1 of 4 labels are outside 0 to 2, first row 2"):
            validate(GOOD_X, torch.tensor([0, 1, label, 1]), 3)

    @pytest.mark.parametrize(
        ("x", "y", "complaint"),
        [
            (torch.zeros(0, 3), GOOD_Y[:0], "the data is empty"),
            (torch.zeros(4, 0), GOOD_Y, "the data is empty"),
            (GOOD_X[:3], GOOD_Y, "one row for each of 4 labels"),
            (torch.zeros(4), GOOD_Y, "one row for each of 4 labels"),
            (GOOD_X, GOOD_Y.float(), "labels must be one int64 per example"),
            (GOOD_X, GOOD_Y[:, None], "labels must be one int64 per example"),
        ],
    )
    def test_bad_shapes_and_types_are_refused(
        self, x: torch.Tensor, y: torch.Tensor, complaint: str
    ) -> None:
        with pytest.raises(DpvdError, match=complaint):
            validate(x, y, 3)

    def test_number_of_classes_is_checked(self) -> None:
        with pytest.raises(DpvdError, match="classes must be an integer"):
            validate(GOOD_X, GOOD_Y, 0)


class TestDataset:
    def test_knows_its_shape_and_checksum(self) -> None:
        assert toy().feature_shape == (3,)
        assert toy().checksum == checksum(GOOD_X, GOOD_Y, GOOD_X[:2], GOOD_Y[:2])

    @pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
    def test_checksum_depends_on_every_part(self, part: str) -> None:
        changed = getattr(toy(), part).clone()
        changed.view(-1)[0] += 1
        assert toy(**{part: changed}).checksum != toy().checksum

    @pytest.mark.parametrize("part", ["train_x", "test_x"])
    def test_both_parts_are_validated(self, part: str) -> None:
        with pytest.raises(DpvdError, match="NaN"):
            toy(**{part: getattr(toy(), part) + float("nan")})

    def test_both_parts_have_one_shape(self) -> None:
        with pytest.raises(DpvdError, match="must have the same shape"):
            toy(test_x=torch.zeros(2, 4))

    def test_checksum_sees_shape_type_and_layout_only_by_content(self) -> None:
        x = torch.arange(6.0).reshape(2, 3)
        assert checksum(x) != checksum(x.reshape(3, 2))
        assert checksum(x) != checksum(x.double())
        assert checksum(x) == checksum(x.T.contiguous().T)


class TestPreprocessing:
    @given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 4))
    def test_flatten_keeps_one_example_per_row(self, n: int, a: int, b: int) -> None:
        x = torch.arange(n * a * b).reshape(n, a, b)
        assert torch.equal(flatten(x), x.view(n, a * b))

    def test_norms_become_one_and_directions_stay(self, generator: torch.Generator) -> None:
        x = torch.randn(50, 4, 5, generator=generator, dtype=torch.float64)
        y = unit_norm(x)
        assert y.shape == x.shape
        torch.testing.assert_close(flatten(y).norm(dim=1), torch.ones(50, dtype=torch.float64))
        torch.testing.assert_close(y, x / x.flatten(1).norm(dim=1)[:, None, None])

    def test_zero_rows_stay_zero(self) -> None:
        assert torch.equal(unit_norm(torch.zeros(2, 3)), torch.zeros(2, 3))

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    def test_extreme_scales_do_not_leave_the_range(self, scale: float) -> None:
        torch.testing.assert_close(
            unit_norm(torch.tensor([[3.0, 4.0]]) * scale), torch.tensor([[0.6, 0.8]])
        )

    def test_bytes_become_float32(self) -> None:
        y = unit_norm(torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8))
        torch.testing.assert_close(y, torch.tensor([[0.0, 1.0], [0.5**0.5, 0.5**0.5]]))

    def test_each_example_is_treated_by_itself(self, generator: torch.Generator) -> None:
        x = torch.randn(20, 6, generator=generator)
        alone = torch.cat([unit_norm(row[None]) for row in x])
        assert torch.equal(unit_norm(x), alone)

    def test_input_is_not_changed(self) -> None:
        x = torch.tensor([[3.0, 4.0]])
        unit_norm(x)
        assert torch.equal(x, torch.tensor([[3.0, 4.0]]))

    def test_prepare_says_what_it_did_and_keeps_the_checksum(self) -> None:
        raw = toy(train_x=torch.ones(4, 2, 2), test_x=torch.ones(2, 2, 2))
        ready = prepare(raw)
        assert torch.equal(ready.train_x, torch.full((4, 4), 0.5))
        assert torch.equal(ready.test_x, torch.full((2, 4), 0.5))
        assert ready.checksum == raw.checksum
        assert ready.preprocessing == "none; then each example by itself scaled to L2 norm 1"


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DpvdError, match="one of digits, mnist; got 'cifar'"):
        data.load("cifar")


def test_load_finds_digits() -> None:
    assert data.load("digits").name == "digits"
