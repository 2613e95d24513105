"""Arrays in files: images and features, names of classes, and one clear line for bad ones."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpvd.data import load_arrays, read_array
from dpvd.errors import DpvdError

IMAGES = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
LABELS = np.array([0, 1, 1, 0])
ROWS = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)


def saved(folder: Path, **arrays: object) -> Path:
    path = folder / "data.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


class TestGoodFiles:
    @pytest.mark.parametrize("shape", [(4, 3, 3), (4, 3, 3, 1), (4, 9)])
    def test_inputs_stay_as_they_are_stored(self, shape: tuple, tmp_path: Path) -> None:
        data = load_arrays(saved(tmp_path, x=IMAGES.reshape(shape), y=LABELS))
        assert data.x.shape == shape
        assert data.x.dtype == np.uint8
        assert data.are_images == (len(shape) > 2)
        assert (data.x_test, data.y_test) == (None, None)

    @pytest.mark.parametrize(
        ("labels", "names", "codes"),
        [
            ([0, 1, 1, 0], ("0", "1"), [0, 1, 1, 0]),
            ([7, 3, 5, 3], ("3", "5", "7"), [2, 0, 1, 0]),
            (["cat", "dog", "dog", "cat"], ("cat", "dog"), [0, 1, 1, 0]),
            ([True, False, False, True], ("false", "true"), [1, 0, 0, 1]),
        ],
    )
    def test_names_of_classes_are_kept(self, labels, names, codes, tmp_path: Path) -> None:
        data = load_arrays(saved(tmp_path, x=IMAGES, y=np.array(labels)))
        assert data.classes == names
        assert data.y.tolist() == codes
        assert data.y.dtype == np.int64
        assert data.not_covered() == ("classes of y",)

    def test_declared_classes_are_not_read_off_the_data(self, tmp_path: Path) -> None:
        path = saved(tmp_path, x=IMAGES, y=LABELS)
        data = load_arrays(path, classes=["2", "1", "0"])
        assert data.y.tolist() == [2, 1, 1, 2]
        assert data.not_covered() == ()
        with pytest.raises(DpvdError, match="a label which is none of the classes 1, 2"):
            load_arrays(path, classes=["1", "2"])

    def test_a_test_part_is_read_if_it_is_there(self, tmp_path: Path) -> None:
        path = saved(tmp_path, x=IMAGES, y=LABELS, x_test=IMAGES[:1], y_test=LABELS[1:2])
        data = load_arrays(path)
        assert np.array_equal(data.x_test, IMAGES[:1])
        assert data.y_test.tolist() == [1]

    def test_inputs_alone_are_read_for_prediction(self, tmp_path: Path) -> None:
        np.save(tmp_path / "new.npy", ROWS)
        assert np.array_equal(read_array(tmp_path / "new.npy"), ROWS)
        assert np.array_equal(read_array(saved(tmp_path, x=ROWS)), ROWS)


NAN = np.where(ROWS[2, 1] == ROWS, np.nan, ROWS)
OBJECTS = np.array([print, len, 1, 2], dtype=object)
BAD = [
    ({"x": None}, "must hold the arrays x and y.*it holds y"),
    ({"y": None}, "must hold the arrays x and y"),
    ({"z": ROWS}, "it holds x, y, z"),
    ({"x_test": ROWS}, "both x_test and y_test, or neither"),
    ({"x_test": ROWS[:, :1], "y_test": LABELS}, "examples of one shape"),
    ({"x": ROWS[:, 0]}, r"x must have shape \(n, features\)"),
    ({"x": np.zeros((4, 1, 2, 2, 2))}, "x must have shape"),
    ({"x": ROWS[:0], "y": LABELS[:0]}, "x is empty"),
    ({"x": IMAGES.astype(np.float32)}, "x must be uint8 if it holds images, got float32"),
    ({"x": np.array([["a"]] * 4)}, "x must be numbers"),
    ({"x": ROWS.astype(complex)}, "x must be numbers, got complex"),
    ({"x": NAN}, "x has NaN or infinity in row 2"),
    ({"y": LABELS[:3]}, "one label for each of 4 examples"),
    ({"y": LABELS[:, None]}, "one label for each of 4 examples"),
    ({"y": LABELS.astype(np.float32)}, "y must be integers or texts, got float32"),
    ({"y": LABELS * 0}, "two classes or more"),
    ({"y": OBJECTS}, "holds Python objects, and reading them would run code"),
    ({"x_test": ROWS, "y_test": LABELS + 5}, "y_test has a label which is none"),
]


@pytest.mark.parametrize(("changes", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_bad_arrays_are_refused(changes: dict, words: str, tmp_path: Path) -> None:
    path = saved(tmp_path, **{"x": ROWS, "y": LABELS, **changes})
    with pytest.raises(DpvdError, match=words) as caught:
        load_arrays(path)
    assert str(path) in str(caught.value)


class TestBadFiles:
    @pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
    def test_truncated_files_are_refused(self, share: float, tmp_path: Path) -> None:
        path = saved(tmp_path, x=IMAGES, y=LABELS)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(DpvdError, match="is damaged"):
            load_arrays(path)

    def test_a_flipped_byte_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        np.savez_compressed(path, x=np.arange(4000, dtype=np.uint8).reshape(4, 1000), y=LABELS)
        content = bytearray(path.read_bytes())
        content[300] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(DpvdError, match="is damaged"):
            load_arrays(path)

    def test_what_would_fill_the_memory_is_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", bytes(2**20))
            archive.filelist[0].file_size = 5 * 2**30  # goes into the archive's directory
        with pytest.raises(DpvdError, match="would unpack to"):
            load_arrays(path)

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text.npz").write_text("x,y\n1,2\n")
        (tmp_path / "folder.npz").mkdir()
        for name, words in (
            ("text.npz", "is no .npz file"),
            ("folder.npz", "is a folder"),
            ("none.npz", "there is no file"),
            ("data.mat", "must end with .npz"),
        ):
            with pytest.raises(DpvdError, match=words):
                load_arrays(tmp_path / name)

    def test_objects_in_npy_are_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "data.npy", OBJECTS, allow_pickle=True)
        with pytest.raises(DpvdError, match="reading them would run code"):
            read_array(tmp_path / "data.npy")
