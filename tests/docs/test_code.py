"""The Python in the documentation runs, page by page, as a reader would run it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.markdown import PAGES, ROOT, Block, blocks

WITH_CODE = [page for page in PAGES if blocks(page, "python")]


def small_data() -> dict[str, Any]:
    """What a page may take for granted: that the reader has data."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 64, generator=generator), torch.randint(10, (40,), generator=generator)
    return {"x": x, "y": y, "examples": len(x)}


TAKEN_FOR_GRANTED = {"layers.md": small_data}


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block; a traceback shows the page and its line."""
    lines = "\n" * (block.line - 1) + block.text
    exec(compile(lines, str(block.page), "exec"), namespace)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = TAKEN_FOR_GRANTED.get(page.name, dict)()
    for block in blocks(page, "python"):
        run(block, namespace)


def test_pages_have_code_and_a_wrong_block_is_noticed() -> None:
    assert {"README.md", "own-loop.md", "gradients.md"} <= {page.name for page in WITH_CODE}
    with pytest.raises(NameError, match="nowhere"):
        run(Block(ROOT / "README.md", 3, "python", "nowhere()\n"), {})


def test_the_loop_in_the_readme_is_short() -> None:
    """From the model to the statement in under ten lines."""
    first = blocks(ROOT / "README.md", "python")[0].text.splitlines()
    loop = first[next(i for i, line in enumerate(first) if line.startswith("model =")) :]
    assert loop[-1].startswith("print(step.guarantee")
    assert len(loop) < 10
