"""Features from columns: by the schema alone, by name, and one clear line for bad cells."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvd.data import Column, Encoder, Schema, Target, open_table
from dpvd.errors import DpvdError
from tests.data.table_cases import CSV, ENCODED, FEATURES, columns, one_number, schema


def text_frame(**cells: list) -> pl.DataFrame:
    return pl.DataFrame(cells, schema=dict.fromkeys(cells, pl.String))


@pytest.fixture
def frame(tmp_path) -> pl.DataFrame:
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    (only,) = open_table(path).batches()
    return only


class TestFeatures:
    def test_every_kind_of_column_is_encoded_as_declared(self, frame: pl.DataFrame) -> None:
        encoder = Encoder(schema())
        assert encoder.features == FEATURES
        features = encoder.encode(frame)
        assert features.dtype == np.float32
        assert np.array_equal(features, ENCODED)
        assert encoder.encode_target(frame).tolist() == [1, 0, 0, 1]

    def test_columns_are_found_by_name(self, frame: pl.DataFrame) -> None:
        turned = frame.select(reversed(frame.columns)).with_columns(extra=pl.lit("x"))
        assert np.array_equal(Encoder(schema()).encode(turned.drop("outcome", "id")), ENCODED)

    def test_a_row_is_encoded_by_itself(self, frame: pl.DataFrame) -> None:
        """No statistic of the data: other rows change nothing."""
        encoder = Encoder(schema(), bins=5)
        whole = encoder.encode(frame)
        alone = [encoder.encode(frame[row : row + 1]) for row in range(len(frame))]
        assert np.array_equal(np.concatenate(alone), whole)

    def test_a_missing_column_is_refused_by_name(self, frame: pl.DataFrame) -> None:
        with pytest.raises(DpvdError, match='no column "smoker"'):
            Encoder(schema()).encode(frame.drop("smoker"))

    def test_no_rows_give_no_features(self, frame: pl.DataFrame) -> None:
        assert Encoder(schema()).encode(frame[:0]).shape == (0, len(FEATURES))

    def test_private_bounds_have_to_be_estimated_first(self) -> None:
        with pytest.raises(DpvdError, match="bounds of x are to be estimated privately"):
            Encoder(one_number(bounds=None, source="private"))

    def test_an_encoder_survives_json(self) -> None:
        encoder = Encoder(schema(), bins=4, spacing="log")
        assert Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
        with pytest.raises(DpvdError, match="unknown entry 'bin'"):
            Encoder.from_dict({**encoder.to_dict(), "bin": 3})

    @given(
        st.lists(
            st.tuples(
                st.floats(allow_nan=False, allow_infinity=False),
                st.sampled_from(["red", "blue", "?", "", "lilac"]),
                st.sampled_from(["yes", "no"]),
                st.dates(),
            ),
            min_size=1,
            max_size=20,
        ),
        st.sampled_from([0, 2, 7]),
    )
    def test_no_row_is_longer_than_the_encoder_says(self, rows: list, bins: int) -> None:
        age, colour, smoker, seen = (list(cells) for cells in zip(*rows, strict=True))
        frame = pl.DataFrame({"age": age, "colour": colour, "smoker": smoker, "seen": seen})
        encoder = Encoder(schema(), bins=bins)
        features = encoder.encode(frame)
        assert np.abs(features).max() <= 1
        assert np.linalg.norm(features.astype(np.float64), axis=1).max() <= encoder.largest_norm
        far = encoder.encode(frame.with_columns(age=pl.lit(1e9), colour=pl.lit("red")))
        reached = np.linalg.norm(far, axis=1).max()
        assert reached > encoder.largest_norm - 1  # the bound is not far off


class TestNumbers:
    @pytest.mark.parametrize(
        ("cell", "feature"),
        [("0", -1), (" 5 ", 0), ("10", 1), ("-3", -1), ("1e3", 1), ("2.5", -0.5)],
    )
    def test_numbers_are_clipped_and_scaled(self, cell: str, feature: float) -> None:
        encoder = Encoder(one_number())
        assert encoder.encode(text_frame(x=[cell])).tolist() == [[1, feature]]

    def test_even_bins_hold_their_lower_edge(self) -> None:
        encoder = Encoder(one_number(), bins=2)
        assert encoder.features == ("constant", "x", "x in [0, 5)", "x in [5, 10)")
        features = encoder.encode(text_frame(x=["-1", "4.99", "5", "10", "11"]))
        assert features[:, 2:].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]

    def test_log_bins_are_narrow_where_values_are_small(self) -> None:
        encoder = Encoder(one_number(bounds=(0, 999)), bins=3, spacing="log")
        assert encoder.features[2:] == ("x in [0, 9)", "x in [9, 99)", "x in [99, 999)")

    def test_edges_of_the_schema_are_used_whatever_the_encoder_says(self) -> None:
        for bins in (0, 5):
            encoder = Encoder(one_number(edges=(1, 2)), bins=bins)
            assert encoder.features[2:] == ("x in [0, 1)", "x in [1, 2)", "x in [2, 10)")

    @pytest.mark.parametrize("bins", [-1, 1, 1001, 2.0, True])
    def test_bad_numbers_of_bins_are_refused(self, bins: object) -> None:
        with pytest.raises(DpvdError, match="bins must be"):
            Encoder(one_number(), bins=bins)

    def test_a_number_that_means_missing_counts_however_it_is_written(self) -> None:
        encoder = Encoder(one_number(missing="indicator", missing_values=("0",)))
        expected = [[1, 0, 1], [1, 0, 1], [1, 0, 1], [1, -0.5, 0]]
        assert encoder.encode(text_frame(x=["0", "0.0", "", "2.5"])).tolist() == expected
        typed = pl.DataFrame({"x": [0.0, 0.0, None, 2.5]})
        assert encoder.encode(typed).tolist() == expected


class TestRegression:
    def test_targets_are_scaled_and_come_back(self) -> None:
        target = Target("days", bounds=(0, 30), unit="days", source="public")
        encoder = Encoder(Schema(columns(), target))
        scaled = encoder.encode_target(text_frame(days=["0", "15", "30", "99"]))
        assert scaled.dtype == np.float32
        assert scaled.tolist() == [-1, 0, 1, 1]
        assert encoder.decode_target(scaled).tolist() == [0, 15, 30, 30]

    def test_classes_have_no_scale(self) -> None:
        with pytest.raises(DpvdError, match="classes, not a scale"):
            Encoder(schema()).decode_target(np.zeros(1))


class TestCategories:
    @pytest.mark.parametrize(
        "categories", [("no", "yes"), ("False", "True"), ("0", "1"), ("false", "true"), ("N", "Y")]
    )
    def test_booleans_of_a_frame_are_the_category_that_says_so(self, categories) -> None:
        column = Column("c", "categorical", categories=categories, source="public")
        target = Target("y", classes=categories, source="public")
        encoder = Encoder(Schema((column,), target))
        frame = pl.DataFrame({"c": [True, False], "y": [True, False]})
        assert encoder.encode(frame)[:, 1:].tolist() == [[0, 1], [1, 0]]
        assert encoder.encode_target(frame).tolist() == [1, 0]

    def test_codes_may_be_text_integers_or_floats(self) -> None:
        column = Column("c", "categorical", categories=("1", "2"), source="public")
        encoder = Encoder(Schema((column,), Target("y", classes=(0, 1), source="public")))
        for cells in (["2", "1"], ["2.0", "1.00"], [2, 1], [2.0, 1.0]):
            assert encoder.encode(pl.DataFrame({"c": cells}))[:, 1:].tolist() == [[0, 1], [1, 0]]


BAD_CELLS = [
    ("age", "1,5", ["the cell is no number", "a point as the decimal sign"]),
    ("age", "NaN", ["the cell is no number", "missing_values"]),
    ("age", "-inf", ["the cell is not finite"]),
    ("age", "old", ["the cell is no number"]),
    ("age", "1e999", ["the cell is no number"]),
    ("smoker", "", ["the cell is empty", 'missing = "indicator"']),
    ("smoker", "?", ["the cell is empty"]),
    ("smoker", "maybe", ["the cell is neither yes nor no", "true/false, yes/no"]),
    ("seen", "06.01.2020", ["the cell is no date such as 2020-12-31", "date_format"]),
    ("seen", "2020-02-30", ["the cell is no date"]),
    ("seen", "2020-01-01x", ["the cell is no date"]),
    ("outcome", "", ["the cell is empty", "the target must be known"]),
    ("outcome", "dead", ["the cell is not one of the declared classes"]),
]


@pytest.mark.parametrize(("name", "cell", "words"), BAD_CELLS, ids=lambda value: str(value)[:20])
def test_bad_cells_are_refused_with_row_and_column(name, cell, words, frame) -> None:
    cells = frame[name].to_list()
    broken = frame.with_columns(pl.Series(name, [*cells[:2], cell, *cells[3:]]))
    encoder = Encoder(schema())
    encode = encoder.encode_target if name == "outcome" else encoder.encode
    with pytest.raises(DpvdError) as caught:
        encode(broken, first_row=101)
    for word in [f'row 103, column "{name}": ', *words]:
        assert word in str(caught.value)


def test_an_undeclared_category_is_refused_unless_the_schema_allows_it() -> None:
    column = Column("c", "categorical", categories=("a", "b"), source="public")
    encoder = Encoder(Schema((column,), Target("y", classes=(0, 1), source="public")))
    with pytest.raises(DpvdError, match=r"row 2, column \"c\": the cell is not .* unseen ="):
        encoder.encode(text_frame(c=["a", "z"]))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf")])
def test_infinite_numbers_of_a_frame_are_refused(bad: float) -> None:
    with pytest.raises(DpvdError, match=r'row 2, column "x": .* is not finite'):
        Encoder(one_number()).encode(pl.DataFrame({"x": [1.0, bad]}))


@pytest.mark.parametrize("cells", [[[1]], [{"a": 1}]])
def test_nested_columns_are_refused(cells: list) -> None:
    with pytest.raises(DpvdError, match='column "x" holds'):
        Encoder(one_number()).encode(pl.DataFrame({"x": cells}))


class TestDates:
    def encoder(self, date_format: str = "") -> Encoder:
        column = Column(
            "d",
            "date",
            bounds=("2020-01-01", "2020-01-11"),
            date_format=date_format,
            source="public",
        )
        return Encoder(Schema((column,), Target("y", classes=(0, 1), source="public")))

    def test_dates_outside_the_range_are_moved_to_its_ends(self) -> None:
        cells = ["1066-10-14", "2020-01-06", "2020-01-06 23:59:59.5", "2999-01-01T00:00Z"]
        assert self.encoder().encode(text_frame(d=cells))[:, 1].tolist() == [-1, 0, 0, 1]

    def test_other_formats_are_declared(self) -> None:
        encoder = self.encoder("%d.%m.%Y")
        assert encoder.encode(text_frame(d=["06.01.2020"]))[:, 1].tolist() == [0]
        with pytest.raises(DpvdError, match=r"no date in the format %d.%m.%Y"):
            encoder.encode(text_frame(d=["2020-01-06"]))

    def test_a_format_that_is_none_is_refused(self) -> None:
        with pytest.raises(DpvdError, match="date"):
            self.encoder("%Q").encode(text_frame(d=["2020-01-06"]))


class TestKnots:
    """The features that models of tables learn from."""

    def test_hats_add_up_to_one_and_bend_at_the_knots(self) -> None:
        encoder = Encoder(one_number(bounds=(0, 40)), knots=5)
        frame = pl.DataFrame({"x": [-3.0, 0.0, 10.0, 15.0, 40.0, 99.0]})
        features = encoder.encode(frame)
        assert features.shape == (6, 6)
        hats = features[:, 1:] + 1 / 5
        assert np.allclose(hats.sum(1), 1)
        assert np.allclose(hats[2], [0, 1, 0, 0, 0])
        assert np.allclose(hats[3], [0, 0.5, 0.5, 0, 0])
        assert np.allclose(features[:, 0], [-1, -1, -0.5, -0.25, 1, 1])

    def test_wide_bounds_are_read_by_logarithms(self) -> None:
        encoder = Encoder(one_number(bounds=(0, 99_999)), knots=0)
        features = encoder.encode(pl.DataFrame({"x": [0.0, 99.0, 99_999.0]}))
        assert np.allclose(features[:, 0], [-1, -0.2, 1], atol=1e-6)

    def test_there_is_no_constant_and_categories_are_centred(self, frame: pl.DataFrame) -> None:
        encoder = Encoder(schema(), knots=4)
        features = encoder.encode(frame)
        assert "constant" not in encoder.features
        assert len(encoder.groups) == encoder.width
        assert (np.diff(encoder.groups) >= 0).all()
        assert encoder.groups[-1] == len(encoder.schema.used) - 1
        assert np.abs(features).max() <= 1
        norms = np.linalg.norm(features.astype(np.float64), axis=1)
        assert norms.max() <= encoder.largest_norm + 1e-6

    def test_an_encoder_with_knots_survives_json_and_old_ones_have_none(self) -> None:
        encoder = Encoder(schema(), knots=4)
        written = json.loads(json.dumps(encoder.to_dict()))
        assert Encoder.from_dict(written) == encoder
        del written["knots"]
        assert Encoder.from_dict(written).knots is None

    @pytest.mark.parametrize("knots", [-1, 1, 1001, 2.0, True])
    def test_bad_numbers_of_knots_are_refused(self, knots: object) -> None:
        with pytest.raises(DpvdError, match="knots must be"):
            Encoder(one_number(), knots=knots)
        with pytest.raises(DpvdError, match="not both"):
            Encoder(one_number(), bins=3, knots=3)
