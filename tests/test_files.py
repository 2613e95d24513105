"""Files appear whole or not at all, and what goes wrong is told in one line."""

import ast
import os
import stat
from pathlib import Path

import pytest

from dpvd import files
from dpvd.errors import DpvdError
from dpvd.files import replacing, write_atomically


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


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_file_is_as_readable_as_the_user_has_set(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


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
