"""Figures show the record's numbers, exist as files, and are left out when there is nothing to
draw.
"""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from dpvd.report import FIGURE_STYLE, PALETTE, figures, inline_svg, svg_bytes
from dpvd.report.figures import illustrate, write_figures
from dpvd.runs import RunRecord

Record = dict[str, Any]

read = RunRecord.from_dict


NAMES = {"progress", "reliability", "confusion", "log-alpha"}


def test_every_figure_is_written_as_png_and_svg(record: Record, tmp_path: Path) -> None:
    paths = write_figures(illustrate(read(record)), tmp_path / "new" / "figures")
    assert {path.name for path in paths} == {
        f"{name}.{kind}" for name in NAMES for kind in ("png", "svg")
    }
    assert sorted(paths) == sorted(
        (tmp_path / "new" / "figures").iterdir()
    )  # and nothing temporary is left
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert len(content) > 5_000
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")


def test_nothing_to_draw_draws_nothing(record: Record) -> None:
    record.update(history=[{"epoch": 1.0}], alpha={})
    record["test"].update(reliability=[{"count": 0}], confusion=[[1, 2]])
    assert illustrate(read(record)) == []


def test_accuracy_and_epsilon_are_drawn_as_recorded(record: Record) -> None:
    drawn = figures.progress(read(record))
    assert drawn is not None
    accuracy, spent = drawn.axes
    assert list(accuracy.lines[0].get_ydata()) == [
        row["test_accuracy"] for row in record["history"]
    ]
    assert list(spent.lines[0].get_ydata()) == [row["epsilon"] for row in record["history"]]
    assert list(spent.lines[0].get_xdata()) == [row["epoch"] for row in record["history"]]


def test_an_infinite_epsilon_leaves_the_accuracy_alone(record: Record) -> None:
    for row in record["history"]:
        row["epsilon"] = None
    drawn = figures.progress(read(record))
    assert drawn is not None
    assert len(drawn.axes) == 1


def test_empty_bins_are_left_out_of_the_reliability_diagram(record: Record) -> None:
    record["test"]["reliability"] += [{"confidence": None, "accuracy": None, "count": 0}]
    drawn = figures.reliability(read(record))
    assert drawn is not None
    points = drawn.axes[0].collections[0].get_offsets()
    expected = [(row["confidence"], row["accuracy"]) for row in record["test"]["reliability"][:-1]]
    np.testing.assert_allclose(np.asarray(points), expected)


def test_dots_at_the_edge_are_whole(record: Record) -> None:
    drawn = figures.reliability(read(record))
    assert drawn is not None
    assert not drawn.axes[0].collections[0].get_clip_on()


def test_depth_of_a_confusion_cell_is_its_share_of_the_true_class(record: Record) -> None:
    record["test"]["confusion"] = [[3, 1], [0, 0]]
    drawn = figures.confusion(read(record))
    assert drawn is not None
    colours = drawn.axes[0].collections[0].get_array()
    assert colours is not None
    np.testing.assert_allclose(colours[..., 3], [[0.75, 0.25], [0.0, 0.0]])
    assert [text.get_text() for text in drawn.axes[0].texts] == ["3", "1"]


def test_layers_carry_their_names_and_keep_their_counts(record: Record) -> None:
    record["alpha"]["9"] = {"edges": [-1.0, 0.0, 1.0], "counts": [5, 7]}
    record["alpha"]["broken"] = {"edges": [0.0], "counts": [1, 2]}
    drawn = figures.log_alpha(read(record))
    assert drawn is not None
    titles = [axes.get_title("left") or axes.get_title() for axes in drawn.axes]
    assert titles == ["0: AdditiveLinear 64→1000", "2: AdditiveLinear 1000→10", "layer 9"]
    assert list(drawn.axes[2].patches[0].get_data().values) == [5, 7]


def test_drawing_leaves_matplotlib_as_it_was(record: Record, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    record.update(history=[], alpha={})
    write_figures(illustrate(read(record)), tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_equal_records_give_equal_files(record: Record) -> None:
    first = figures.log_alpha(read(record))
    second = figures.log_alpha(read(record))
    assert first is not None
    assert second is not None
    assert svg_bytes(first) == svg_bytes(second)


def test_inlined_figures_follow_the_page_and_do_not_share_ids(record: Record) -> None:
    with matplotlib.rc_context(FIGURE_STYLE):
        drawn = figures.progress(read(record))
        assert drawn is not None
        text = str(inline_svg(svg_bytes(drawn), "a", 'says "hello" & <b>'))
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'says "hello" & <b>'
    ids = {element.get("id") for element in root.iter()} - {None}
    assert ids
    assert all(str(name).startswith("a-") for name in ids)
    used = {
        value[1:]
        for element in root.iter()
        for key, value in element.items()
        if key.endswith("href")
    }
    assert used
    assert used <= ids
    assert not any(value in text for value in PALETTE.values())
    assert "var(--figure-ink)" in text
    assert "<style" not in text


def test_the_palette_is_written_as_the_drawing_library_writes_it() -> None:
    """Inlining finds the colours in the file by their text: they must be in the form matplotlib
    prints.
    """
    assert all(to_hex(value) == value for value in PALETTE.values())
