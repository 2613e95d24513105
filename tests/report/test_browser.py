"""The pages in a browser: no complaint on the console, nothing too wide, nothing too pale."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.browser import open_page
from tests.cli.program import call

from dpvd.report import write_report
from dpvd.runs import RunRecord

WIDTHS = (1200, 420)
NAMES = (
    *("report", "statement", "planner"),
    *("classes-report", "classes-statement", "number-report", "number-statement"),
)

# Run by the browser at the end of the page: what is wider than the window and does not scroll, and
# text whose contrast with its background is below 4.5, the least that WCAG 2.2 (1.4.3) allows.
MEASURE = """
<script>
const scrolls = (each) =>
  each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
const all = [...document.querySelectorAll("body *")];
const wide = all.filter(
  (each) => each.getBoundingClientRect().right > innerWidth + 1 && !scrolls(each));
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const behind = (each) => {
  const colour = getComputedStyle(each).backgroundColor;
  return parts(colour)[3] === 0 ? behind(each.parentElement) : colour;
};
const light = (colour) => {
  const [red, green, blue] = parts(colour).map((part) => part / 255).map(
    (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const contrast = (each) => {
  const colours = [getComputedStyle(each).color, behind(each)];
  const [less, more] = colours.map(light).sort((a, b) => a - b);
  return (more + 0.05) / (less + 0.05);
};
const speaks = (each) => !["SCRIPT", "STYLE"].includes(each.tagName) && !each.closest("svg") &&
  [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const pale = all.filter((each) => speaks(each) && contrast(each) < 4.5);
const shown = (each) => each.outerHTML.slice(0, 60);
parent.postMessage({
  frame: location.hash.slice(1), width: innerWidth, wide: wide.map(shown), pale: pale.map(shown),
}, "*");
</script>
"""

# A window is never narrower than 500 pixels, a frame is.
FRAMES = """<!doctype html><title>frames</title>
<script>
const found = [];
addEventListener("message", (event) => {
  found.push(event.data);
  document.title = "found:" + btoa(unescape(encodeURIComponent(JSON.stringify(found))));
});
</script>
"""
FRAME = (
    '<iframe src="{name}.html#{name}-{width}"'
    ' style="width: {width}px; height: 900px; border: 0"></iframe>'
)

BROKEN = '<body><p style="width: 3000px; color: #999; background: #fff">wide and pale</p></body>'

CLASSES = """
id = "patient_id"
rows_per_unit = 2

[target]
name = "discharged_to"
classes = ["own home", "nursing home or another hospital"]
source = "public"

[columns.age_at_admission_in_years]
kind = "numeric"
source = "private"

[columns.ward]
kind = "categorical"
categories = ["internal medicine", "surgery"]
source = "data"
"""

NUMBER = """
[target]
name = "days"
bounds = [0, 20]
unit = "days in hospital"
source = "public"

[columns.age_at_admission_in_years]
kind = "numeric"
bounds = [0, 120]
source = "public"
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each page: of an old run on images, two runs on a table, and the planner."""
    folder = tmp_path_factory.mktemp("pages")
    old = Path(__file__).parents[1] / "runs" / "old_runs" / "finished"
    values: dict[str, Any] = json.loads((old / "record.json").read_text(encoding="utf-8"))
    (folder / "declared.toml").write_text('owner = "Klinikum am Rande der Stadt"\n')
    write_report(RunRecord.from_dict(values), folder)
    line = "--examples 500 --features 3 --classes 2 --delta 1e-4 --epsilon 0.5,1,2 --html"
    assert call("plan", *line.split(), folder / "planner.html").code == 0
    patients = folder / "patients.csv"
    patients.write_text(_patients(), encoding="utf-8")
    _train(patients, "classes", CLASSES, "--private-bounds", 0.3)
    _train(patients, "number", NUMBER)
    files = {name: folder / f"{name.replace('-', '/')}.html" for name in NAMES}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _patients() -> str:
    """Two rows for each patient; who is older stays longer and goes home less often."""
    lines = ["patient_id,age_at_admission_in_years,ward,discharged_to,days"]
    for row in range(1600):
        age = 20 + 7 * row % 73
        home = "own home" if age < 60 else "nursing home or another hospital"
        ward = "surgery" if row % 3 else "internal medicine"
        lines.append(f"p{row // 2},{age},{ward},{home},{age / 10:.1f}")
    return "\n".join(lines) + "\n"


def _train(table: Path, name: str, schema: str, *options: object) -> None:
    """A run beside the table, with tests."""
    known = table.with_name(f"{name}.toml")
    known.write_text(schema, encoding="utf-8")
    line = ("--schema", known, "--epsilon", 1, "--delta", 1e-5, "--test-fraction", 0.2)
    done = call("train", table, *line, *options, "--out", table.with_name(name))
    assert done.code == 0, done.err


@pytest.fixture(scope="module", params=[False, True], ids=["light", "dark"])
def seen(
    pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory, request: Any
) -> tuple[list[str], dict[str, Any]]:
    """What the console said of all pages at all widths, and what was measured of each."""
    folder = tmp_path_factory.mktemp("seen")
    shown = pages | {"broken": BROKEN}
    frames = [FRAME.format(name=name, width=width) for name in shown for width in WIDTHS]
    for name, text in shown.items():
        measured = text.replace("</body>", f"{MEASURE}</body>")
        (folder / f"{name}.html").write_text(measured, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES + "".join(frames), encoding="utf-8")
    view = open_page(folder / "frames.html", width=WIDTHS[0] + 20, height=1000, dark=request.param)
    found = re.search(r"<title>found:(.*?)</title>", view.document)
    assert found is not None
    measures = json.loads(base64.b64decode(found[1]))
    return view.messages, {measure.pop("frame"): measure for measure in measures}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_without_complaint_fits_and_can_be_read(
    seen: tuple[list[str], dict[str, Any]], name: str, width: int
) -> None:
    messages, measures = seen
    assert messages == []
    assert measures[f"{name}-{width}"] == {"width": width, "wide": [], "pale": []}


def test_what_is_wide_or_pale_would_be_noticed(
    seen: tuple[list[str], dict[str, Any]],
) -> None:
    measure = seen[1]["broken-420"]
    assert len(measure["wide"]) == len(measure["pale"]) == 1
