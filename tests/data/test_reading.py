"""Files as batches of columns: formats, delimiters, encodings, and one clear line for bad ones."""

import codecs
import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvd.data import open_table
from dpvd.data.csv_text import LONGEST_LINE
from dpvd.data.source import BATCH_ROWS
from dpvd.errors import DpvdError
from tests.data.table_cases import CSV, public_table


def everything(path: Path, **options: str) -> dict[str, list]:
    frames = list(open_table(path, **options).batches())
    return pl.concat(frames).to_dict(as_series=False)


def written(folder: Path, content: bytes | str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


PLAIN = {"a": ["1", "x;y"], "b": [" é", ""]}


class TestCsv:
    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_delimiters_are_recognised(self, delimiter: str, end: str, tmp_path: Path) -> None:
        text = end.join([f"a{delimiter}b", f"1{delimiter} é", f'"x;y"{delimiter}', ""])
        assert everything(written(tmp_path, text)) == PLAIN

    @pytest.mark.parametrize(
        "content",
        [
            codecs.BOM_UTF8 + "a,b\n1, é\nx;y,\n".encode(),
            "a,b\n1, é\nx;y,\n".encode("utf-16"),
            codecs.BOM_UTF16_BE + "a,b\n1, é\nx;y,\n".encode("utf-16-be"),
        ],
    )
    def test_byte_order_marks_tell_the_encoding(self, content: bytes, tmp_path: Path) -> None:
        assert everything(written(tmp_path, content), delimiter=",") == PLAIN

    def test_latin_1_is_read_only_when_asked_for(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a,b\n1, é\nx;y,\n".encode("latin-1"))
        with pytest.raises(DpvdError, match=r"is not utf-8 \(byte 0xe9\).*latin-1"):
            everything(path)
        assert everything(path, encoding="latin-1") == PLAIN

    def test_all_cells_stay_text(self, tmp_path: Path) -> None:
        path = written(tmp_path, "id,zip,flag\n007,01234,true\n")
        assert everything(path) == {"id": ["007"], "zip": ["01234"], "flag": ["true"]}

    def test_quoted_cells_hold_delimiters_quotes_and_line_ends(self, tmp_path: Path) -> None:
        path = written(tmp_path, 'a,b\n"x, ""y""\nz",2\n\n3,4\n')
        assert everything(path) == {"a": ['x, "y"\nz', "3"], "b": ["2", "4"]}

    cell = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)

    @given(st.lists(st.tuples(cell, cell), min_size=1, max_size=8), st.sampled_from(",;\t|"))
    def test_what_a_writer_quotes_is_read_back(self, rows: list, delimiter: str) -> None:
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([("left", "right"), *rows])
        left, right = zip(*rows, strict=True)
        with TemporaryDirectory() as folder:
            path = written(Path(folder), buffer.getvalue())
            read = everything(path, delimiter=delimiter)
        assert read == {"left": list(left), "right": list(right)}

    def test_large_files_come_in_batches_that_join_up(self, tmp_path: Path) -> None:
        rows = 2 * BATCH_ROWS + 5
        path = written(tmp_path, "n\n" + "".join(f"{number}\n" for number in range(rows)))
        frames = list(open_table(path).batches())
        assert [len(frame) for frame in frames] == [BATCH_ROWS, BATCH_ROWS, 5]
        assert pl.concat(frames)["n"].cast(int).to_list() == list(range(rows))

    def test_the_limit_of_the_csv_module_is_left_as_it_was(self, tmp_path: Path) -> None:
        before = csv.field_size_limit()
        everything(written(tmp_path, 'a,b\n"' + "x" * 200_000 + '",1\n'))
        assert csv.field_size_limit() == before

    def test_the_standard_tables_are_read_whole(self) -> None:
        read = everything(public_table("adult-train.csv"))
        assert {len(cells) for cells in read.values()} == {32_561}
        assert "?" in read["workclass"]


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("patients.csv", b"0" * 50_000_000)
    return buffer.getvalue()


BAD = {
    "empty": (lambda: b"", ["is empty"]),
    "only a byte order mark": (lambda: codecs.BOM_UTF8, ["is empty"]),
    "duplicate columns": (lambda: b"a,b,a\n1,2,3\n", ['two columns named "a"']),
    "duplicate after stripping": (lambda: b"a, a\n1,2\n", ['two columns named "a"']),
    "a column without a name": (lambda: b"a,,c\n1,2,3\n", ["no name for column 2"]),
    "a short row": (lambda: b"a,b\n1,2\n3\n", ["line 3", "1 cell where the header has 2"]),
    "a long row": (lambda: b"a,b\n1,2\n1,2,3\n", ["line 3", "3 cells where the header has 2"]),
    "a NUL byte": (lambda: b"a,b\n1,2\n1,\0\n", ["line 3", "NUL"]),
    "utf-16 without a mark": (lambda: "a,b\n1,2\n".encode("utf-16-le"), ["NUL", "encoding"]),
    "an open quote": (lambda: b'a,b\n1,"2\n3,4\n', ["line 3", "never closed"]),
    "text after a quote": (lambda: b'a,b\n1,"2"x\n', ["line 2", "closing quote"]),
    "old Mac line ends": (lambda: b"a,b\r1,2\r3,4\r", ["line 1", "carriage return"]),
    "one endless line": (lambda: b"a,b\n" + b"1" * (LONGEST_LINE + 1), ["line 2", "10 million"]),
    "a line of 100 MB": (lambda: b"a,b\n1,2\n" + b"1," * 50_000_000, ["line 3", "10 million"]),
    "an endless quoted cell": (
        lambda: b'a,b\n1,"' + b"22222222\n" * (LONGEST_LINE // 8) + b'"',
        ["never closed"],
    ),
    "zip": (zip_bomb, ["is a zip archive", "not text"]),
    "gzip": (lambda: gzip.compress(b"a,b\n1,2\n"), ["compressed with gzip"]),
    "parquet": (lambda: b"PAR1....", ["is a Parquet file"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_csv_files_get_one_clear_line(case: str, tmp_path: Path) -> None:
    make, words = BAD[case]
    path = written(tmp_path, make())
    with pytest.raises(DpvdError) as caught:
        everything(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for word in [str(path), *words]:
        assert word in message


def test_folders_missing_files_and_unknown_endings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DpvdError, match="is a folder"):
        open_table(tmp_path / "folder.csv")
    with pytest.raises(DpvdError, match="there is no file"):
        open_table(str(tmp_path / "none.csv"))
    with pytest.raises(DpvdError, match=r"must end with one of \.csv.*table\.xlsx"):
        open_table(written(tmp_path, "a", "table.xlsx"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delimiter": ":"}, "delimiter must be one of ','"),
        ({"encoding": "klingon"}, "encoding must be one that Python knows.*'klingon'"),
        ({"encoding": "base64"}, "encoding must be one that Python knows"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(DpvdError, match=words):
        open_table(written(tmp_path, CSV), **options)


FORMATS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    "table.parquet": pl.DataFrame.write_parquet,
    "table.arrow": pl.DataFrame.write_ipc,
    "table.feather": pl.DataFrame.write_ipc,
}


@pytest.mark.parametrize("name", FORMATS)
class TestColumnFormats:
    def test_types_and_order_are_kept(self, name: str, tmp_path: Path) -> None:
        rows = BATCH_ROWS + 7
        frame = pl.DataFrame({"n": range(rows), "even": [i % 2 == 0 for i in range(rows)]})
        FORMATS[name](frame, tmp_path / name)
        frames = list(open_table(tmp_path / name).batches())
        assert len(frames) > 1
        assert pl.concat(frames).equals(frame)

    def test_damaged_files_are_refused(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / name
        FORMATS[name](pl.DataFrame({"n": range(1000)}), path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DpvdError, match="damaged"):
            everything(path)
        path.write_bytes(b"a,b\n1,2\n")
        with pytest.raises(DpvdError, match="though its name says so"):
            open_table(path)

    def test_options_of_csv_are_refused(self, name: str, tmp_path: Path) -> None:
        FORMATS[name](pl.DataFrame({"n": [1]}), tmp_path / name)
        with pytest.raises(DpvdError, match="are for CSV files"):
            open_table(tmp_path / name, delimiter=",")
