"""The page: complete, well-formed, self-contained, escaped, and plain about what is not private."""

import html
import json
import math
import os
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpvd.errors import DpvdError
from dpvd.report import render, write_report
from dpvd.runs import RunRecord

Record = dict[str, Any]

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = (
    "</pre></script><script>alert('x')</script><img src=https://evil.example/x onerror=y>"
    "\"'& $\\no_formula$ {% raw %} {{ 7 * 7 }}"
)
DRAWN = ("history", "alpha")


class Outline(HTMLParser):
    """Collects what the checks look at; complains about tags that do not balance."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        self.faults += [f"<{tag}> never closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def text(self, tag: str) -> str:
        return "".join(self.texts.get(tag, []))


def without_figures(test: Record) -> Record:
    return {key: value for key, value in test.items() if key not in ("reliability", "confusion")}


@pytest.fixture
def tables_only(record: Record) -> Record:
    """The record without what is drawn: pages in milliseconds."""
    record.update(history=[], alpha={}, test=without_figures(record["test"]))
    return record


def outline_of(record: Record) -> Outline:
    return Outline(render(RunRecord.from_dict(record)))


def _resources(page: str) -> list[str]:
    """Everything a browser would fetch: in attributes, in style sheets and inline styles."""
    outline = Outline(page)
    named = {"src", "href", "xlink:href", "srcset", "poster", "data", "action", "background"}
    attributes = [str(v) for _, attrs in outline.tags for k, v in attrs.items() if k in named]
    styles = outline.text("style") + " ".join(str(attrs.get("style")) for _, attrs in outline.tags)
    clips = " ".join(str(attrs.get("clip-path")) for _, attrs in outline.tags)
    found = (
        attributes
        + re.findall(r"url\(\s*['\"]?([^)'\"]*)", styles + clips)
        + re.findall(r"@import.*", styles)
    )
    return [resource for resource in found if not resource.startswith("#")]


def test_the_whole_page(record: Record, page: str) -> None:
    outline = Outline(page)
    assert page.startswith("<!doctype html>")
    assert outline.faults == []
    assert _resources(page) == []
    assert "script" not in {tag for tag, _ in outline.tags}
    assert html.escape(record["guarantee"]["sentence"]) in page.replace("&#39;", "&#x27;")
    assert (
        outline.text("h1")
        == "88.9\N{NO-BREAK SPACE}% test accuracy at ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.9996"
    )
    assert (
        "95\N{NO-BREAK SPACE}% interval 85.2\N{NO-BREAK SPACE}% to 91.8\N{NO-BREAK SPACE}%"
        in outline.text("dd")
    )
    assert json.loads(outline.text("pre")) == record
    assert "banner" not in outline.text("p")
    assert not any("banner" in str(attrs.get("class")) for _, attrs in outline.tags)


def test_the_page_is_accessible(page: str) -> None:
    outline = Outline(page)
    attributes = dict(outline.tags)
    assert attributes["html"]["lang"] == "en"
    figures = [attrs for tag, attrs in outline.tags if tag == "svg"]
    assert len(figures) == 4
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = {
        str(attrs["aria-labelledby"]) for _, attrs in outline.tags if "aria-labelledby" in attrs
    }
    assert labels <= set(ids)


def _poison(value: Any) -> Any:
    """Replace every text by a hostile one and give every mapping a hostile key."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [_poison(item) for item in value]
    if isinstance(value, dict):
        poisoned = {key: _poison(item) for key, item in value.items()}
        return {**poisoned, HOSTILE: HOSTILE}
    return value


def test_hostile_texts_stay_texts(record: Record) -> None:
    hostile = {key: _poison(value) for key, value in record.items()}
    hostile["alpha"] = {HOSTILE: record["alpha"]["0"]}  # layer names are drawn into a figure
    page = render(RunRecord.from_dict(hostile))
    outline = Outline(page)
    assert outline.faults == []
    assert {"script", "img"}.isdisjoint(tag for tag, _ in outline.tags)
    assert not any(name.startswith("on") for _, attrs in outline.tags for name in attrs)
    assert _resources(page) == []
    assert json.loads(outline.text("pre")) == hostile
    assert HOSTILE in outline.text("text")


@pytest.mark.parametrize("field", [*DRAWN, "reliability", "confusion"])
def test_a_figure_without_data_is_left_out(record: Record, field: str) -> None:
    names = {"history": "progress", "alpha": "log-alpha"}
    kept = {**record, "history": [], "alpha": {}, "test": without_figures(record["test"])}
    if field in DRAWN:
        kept[field] = record[field]
    else:
        kept["test"][field] = record["test"][field]
    shown = [
        str(attrs["id"]) for tag, attrs in outline_of(kept).tags if tag == "g" and "id" in attrs
    ]
    assert {name.partition("-figure")[0] for name in shown if "-figure" in name} == {
        names.get(field, field)
    }


@pytest.mark.parametrize("field", ["alpha", "sparsity"])
def test_a_run_of_point_weights_has_no_pruning(tables_only: Record, field: str) -> None:
    del tables_only[field]
    outline = outline_of(tables_only)
    assert outline.faults == []
    assert json.loads(outline.text("pre")) == tables_only | {field: {}}


@pytest.mark.parametrize("epsilon", [None, math.inf, "inf"])
def test_an_infinite_epsilon_is_not_private(tables_only: Record, epsilon: Any) -> None:
    sentence = "Not differentially private: no noise was added."
    tables_only.update(
        method="none",
        guarantee={"epsilon": epsilon, "delta": 1e-5, "sentence": sentence, "steps": 40},
    )
    outline = outline_of(tables_only)
    assert ("p", {"class": "banner danger", "role": "note"}) in outline.tags
    assert "Not differentially private." in outline.text("strong")
    assert "without privacy" in outline.text("h1")
    assert sentence in outline.text("p")
    assert "∞" in outline.text("dd")
    assert "What is promised" not in outline.text("h3")


def test_seeded_noise_is_called_what_it_is(tables_only: Record) -> None:
    tables_only["plan"]["noise"] = "seeded"
    outline = outline_of(tables_only)
    assert ("p", {"class": "banner caution", "role": "note"}) in outline.tags
    assert "Reproducible: not private against whoever knows the seed." in outline.text("strong")
    assert "Anyone who can regenerate the noise can subtract it." in outline.text("p")
    assert not any("statement safe" in str(attrs.get("class")) for _, attrs in outline.tags)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (245.0, "4 min 05 s"), (3599.7, "1 h 00 min"), (7625, "2 h 07 min")],
)
def test_training_times(tables_only: Record, seconds: float, text: str) -> None:
    tables_only["seconds"] = seconds
    assert text in outline_of(tables_only).text("dd")


def test_the_report_is_written_with_its_figures(record: Record, tmp_path: Path) -> None:
    test = without_figures(record["test"])
    small = RunRecord.from_dict({**record, "history": [], "test": test})
    page = write_report(small, tmp_path / "run")
    assert page == tmp_path / "run" / "report.html"
    verdict = "not verified: there was no folder of a run"
    assert page.read_text(encoding="utf-8") == render(small, verdict=verdict)
    assert sorted(path.name for path in (tmp_path / "run" / "figures").iterdir()) == [
        "log-alpha.png",
        "log-alpha.svg",
    ]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "figures",
        "report.html",
        "statement.html",
    ]


def test_a_failed_write_keeps_the_old_page(
    tables_only: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write_report(RunRecord.from_dict(tables_only), tmp_path)
    old = page.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    tables_only["method"] = "dpsgd"
    with pytest.raises(DpvdError, match="no space"):
        write_report(RunRecord.from_dict(tables_only), tmp_path)
    assert page.read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "statement.html"}
