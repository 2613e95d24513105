"""The pages in a browser: no complaint on the console, nothing wider than the window."""

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

# Run by the browser at the end of the page: what is wider than the window, and does not scroll.
MEASURE = """
<script>
const scrolls = (each) =>
  each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
const wide = [...document.querySelectorAll("body *")].filter(
  (each) => each.getBoundingClientRect().right > innerWidth + 1 && !scrolls(each));
const found = { width: innerWidth, wide: wide.map((each) => each.outerHTML.slice(0, 60)) };
parent.postMessage(btoa(unescape(encodeURIComponent(JSON.stringify(found)))), "*");
</script>
"""

# A window is never narrower than 500 pixels, a frame is.
FRAME = """<!doctype html><title>frame</title>
<script>
addEventListener("message", (event) => { document.title = "found:" + event.data; });
</script>
<iframe src="page.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Report, statement and planner as files."""
    folder = tmp_path_factory.mktemp("pages")
    old = Path(__file__).parents[1] / "runs" / "old_runs" / "finished"
    values: dict[str, Any] = json.loads((old / "record.json").read_text(encoding="utf-8"))
    (folder / "declared.toml").write_text('owner = "Klinikum am Rande der Stadt"\n')
    write_report(RunRecord.from_dict(values), folder)
    line = "--examples 500 --features 3 --classes 2 --delta 1e-4 --epsilon 0.5,1,2 --html"
    assert call("plan", *line.split(), folder / "plan.html").code == 0
    return {
        "report": folder / "report.html",
        "statement": folder / "statement.html",
        "planner": folder / "plan.html",
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
@pytest.mark.parametrize("name", ["report", "statement", "planner"])
def test_a_page_opens_without_complaint_and_fits(
    pages: dict[str, Path], name: str, width: int, dark: bool, tmp_path: Path
) -> None:
    text = pages[name].read_text(encoding="utf-8")
    measured = tmp_path / "page.html"
    measured.write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    framed = tmp_path / "frame.html"
    framed.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    view = open_page(framed, width=width + 20, height=1000, dark=dark)
    assert view.messages == []
    found = re.search(r"<title>found:(.*?)</title>", view.document)
    assert found is not None
    assert json.loads(base64.b64decode(found[1])) == {"width": width, "wide": []}
