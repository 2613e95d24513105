"""Files appear whole or not at all, and what goes wrong is told in one line."""

import ast
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpvd import files
from dpvd.errors import DpvdError
from dpvd.files import HANDED_OUT, create_private, replacing, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as partial:
        partial.write_bytes(b"ne")
        assert path.read_bytes() == b"old"
        partial.write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_the_file_is_on_disk_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch) -> None:
    order = []
    sync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("move"), move(*paths)))
    write_atomically(tmp_path / "file", b"content")
    assert order == ["sync", "move", "sync"]  # the last one is for its name


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_keeps_the_old_file_and_passes(tmp_path: Path, error) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DpvdError, match=r"below cannot be written \(.*: choose another folder"):
        write_atomically(tmp_path / "file" / "below", b"content")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "target" / "full").mkdir(parents=True)
    with pytest.raises(DpvdError, match="cannot be written"):
        write_atomically(tmp_path / "target", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_mask() -> Iterator[None]:
    """A system that takes nothing away from what programs ask for."""
    before = os.umask(0)
    yield
    os.umask(before)


posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")


@posix
@pytest.mark.usefixtures("open_mask")
def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "above" / "below" / "file"
    write_atomically(path, b"content")
    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == mode_of(path.parent.parent) == 0o700
    create_private(tmp_path / "key", b"secret")
    assert mode_of(tmp_path / "key") == 0o600
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "key", b"another")


@posix
@pytest.mark.usefixtures("open_mask")
def test_a_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as partial:
        assert mode_of(partial) == 0o600


@posix
@pytest.mark.usefixtures("open_mask")
def test_what_is_handed_out_can_be_read_and_only_its_owner_writes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, b"content", mode=HANDED_OUT)
    assert mode_of(path) == 0o644
    assert mode_of(path.parent) == 0o755
    os.umask(0o077)
    write_atomically(path, b"content", mode=HANDED_OUT)
    assert mode_of(path) == 0o600


def test_nothing_else_in_the_package_moves_files_into_place() -> None:
    home = Path(files.__file__)
    movers = [
        path.name
        for path in home.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("os", "replace"), ("os", "rename"), ("shutil", "move")}
    ]
    assert movers == [home.name]


MAKERS = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkstemp", "mkdtemp"}
MODES = re.compile(r"[wax][bt]?\+?|ab\+?")


def test_nothing_else_in_the_package_makes_files_or_folders() -> None:
    home = Path(files.__file__)
    makers = {
        path.name
        for path in home.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and makes_a_file(node)
    }
    # chain.py makes ledgers, with O_CREAT and 0600; predict.py fills what `replacing` made; the
    # lock of the experiments in store.py is empty.
    assert makers == {home.name, "chain.py", "predict.py", "store.py"}


def makes_a_file(call: ast.Call) -> bool:
    """Whether it is a call that can make a file or a folder."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name != "open":
        return name in MAKERS
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "mode")]
    words = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return any(map(MODES.fullmatch, words)) or "O_CREAT" in ast.unparse(call)
