"""Data sets, tables and their schemas, and preprocessing that needs no privacy budget."""

from pathlib import Path

from dpvd.data.array_tables import ARRAY_ENDINGS, array_test, holds_images
from dpvd.data.arrays import ArrayData, load_arrays, read_array, read_file
from dpvd.data.column import Column, Kind, Missing, Source, Target, Unseen
from dpvd.data.dataset import Dataset, validate
from dpvd.data.digits import load_digits
from dpvd.data.draft import Draft, draft_schema, repeated_identifiers
from dpvd.data.encoding import Encoder, Spacing
from dpvd.data.mnist import load_mnist
from dpvd.data.parsed import parsed_once
from dpvd.data.preprocessing import centred, flatten, prepare, unit_norm
from dpvd.data.schema import Schema
from dpvd.data.schema_file import read_schema, schema_text
from dpvd.data.source import TableSource
from dpvd.data.splitting import TrainingCells, count_units, training_cells
from dpvd.data.tables import (
    EncodedTable,
    TableParts,
    encoded_batches,
    load_table,
    open_table,
)
from dpvd.data.units import chosen_rows, unit_hashes, unit_numbers
from dpvd.data.words import TRUE_WORDS, canonical_text
from dpvd.errors import DpvdError

__all__ = [
    "ARRAY_ENDINGS",
    "TRUE_WORDS",
    "ArrayData",
    "Column",
    "Dataset",
    "Draft",
    "EncodedTable",
    "Encoder",
    "Kind",
    "Missing",
    "Schema",
    "Source",
    "Spacing",
    "TableParts",
    "TableSource",
    "Target",
    "TrainingCells",
    "Unseen",
    "array_test",
    "canonical_text",
    "centred",
    "chosen_rows",
    "count_units",
    "draft_schema",
    "encoded_batches",
    "flatten",
    "holds_images",
    "load",
    "load_arrays",
    "load_digits",
    "load_mnist",
    "load_table",
    "open_table",
    "parsed_once",
    "prepare",
    "read_array",
    "read_file",
    "read_schema",
    "repeated_identifiers",
    "schema_text",
    "training_cells",
    "unit_hashes",
    "unit_norm",
    "unit_numbers",
    "validate",
]


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """Return the data set with this name.

    Args:
        name: ``"digits"`` or ``"mnist"``.
        data_dir: where to look for files first; DIGITS needs none.

    Raises:
        DpvdError: for another name, or if the data cannot be had.

    >>> load("digits").train_x.shape
    torch.Size([1437, 64])
    """
    if name == "digits":
        return load_digits()
    if name == "mnist":
        return load_mnist(data_dir)
    raise DpvdError(f"data set must be one of digits, mnist; got {name!r}")
