"""From options and a table to all that a run will do; nothing is charged or written here."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dpvd.data import (
    EncodedTable,
    Encoder,
    Schema,
    TableParts,
    TableSource,
    count_units,
    load_table,
    parsed_once,
    repeated_identifiers,
)
from dpvd.errors import DpvdError
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.runs.network import Method
from dpvd.runs.options import RunOptions
from dpvd.runs.tables.choice import TableChoice, chosen_schema, to_estimate, words_not_covered
from dpvd.runs.tables.recipe import network_kind
from dpvd.tabular import knots_for, provisional

__all__ = ["PreparedTable", "prepare_table"]

_KEY_BYTES = 32
_BLOCK = 2**20  # bytes that are read at once
_MEMORY = 64 * 2**20  # bytes of rows, and of features, beyond which they go into a file
# Of networks alone: the model of a table is chosen by its own recipe.
_OF_NETWORKS = (
    "sampling",
    "clipping",
    "clip_norm",
    "clip_quantile",
    "bands",
    "posterior",
    "prediction_sets",
    "batch_size",
    "epochs",
    "learning_rate",
    "optimizer",
    "decay",
    "gamma",
    "kl_weight",
    "recipe",
    "features",
    "scale",
)


@dataclass(frozen=True, eq=False)
class PreparedTable:
    """All that a run on a table will do, decided and checked.

    Attributes:
        options: what the user chose.
        choice: which files.
        schema: complete, or with columns that are to be estimated.
        estimated: names of these.
        base: what all plans of the run have in common.
        knots: of the encoding.
        seed: of the split; secret, unless noise is seeded.
        key: secret of the run, of which the seed and the keys of checksums are made.
        parts: the encoded table; None if the encoding has to wait for estimates.
        test: the rows to test on; None if there are none.
        stamps: of the files that were read, before they were.
        table: the table to train on, for these estimates; None if there is nothing to wait for.
        test_table: the one to test on, if there is one and it has to be encoded after them.
        not_covered: what the statement leaves open of the schema.
        identifiers: columns that look like identifiers with repeats although there is no id.
    """

    options: RunOptions
    choice: TableChoice
    schema: Schema
    estimated: list[str]
    base: PrivacyPlan
    knots: int
    seed: int
    key: bytes
    parts: TableParts | None
    test: EncodedTable | None
    stamps: dict[str, tuple[int, int]]
    table: TableSource | None
    test_table: TableSource | None
    not_covered: tuple[str, ...]
    identifiers: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the table's file, which the record shows."""
        return self.choice.table.name

    def contents(self) -> dict[str, str]:
        """Keyed checksums of the files that the run has read, by what they are.

        Raises:
            DpvdError: if one has changed in the meantime, so that this would be another's.
        """
        files = self.choice.files()
        found = {what: _file_checksum(self.key, path) for what, path in files.items()}
        for what, stamp in _stamps(self.choice).items():
            if stamp != self.stamps[what]:
                raise DpvdError(f"{files[what]} has changed since it was read: start again")
        return found

    def load(self, schema: Schema) -> tuple[EncodedTable, EncodedTable | None]:
        """The rows to train on and those to test on, by a complete schema."""
        assert self.table is not None  # it has waited for this schema
        encoder = Encoder(schema, knots=self.knots)
        parts = _load(self.choice, self.table, encoder, self.seed)
        return parts.train, _test(self.test_table, encoder, parts)


def prepare_table(
    options: RunOptions, choice: TableChoice, key: bytes | None = None
) -> PreparedTable:
    """Read the table, check all of it and choose the encoding.

    Args:
        options: what the user chose.
        choice: which files.
        key: of a run that goes on; drawn if None.

    Raises:
        DpvdError: for whatever cannot be trained on, naming row and column.
    """
    _refuse_options_of_networks(options)
    stamps = _stamps(choice)
    source = parsed_once(choice.open(), memory=_MEMORY)
    is_private = options.method is not Method.NONE
    drafted = choice.schema is None
    schema = chosen_schema(choice, source, private_bounds=options.private_bounds is not None)
    estimated = to_estimate(schema, drafted=drafted)
    _check_estimates(options, estimated, schema)
    # A split that is known in advance goes by the position of rows: one row more would move all
    # rows behind it between training and test, and the account is for one.
    secret = secrets.token_bytes(_KEY_BYTES) if key is None else key
    seed = options.seed if options.seeded_noise else _split_seed(secret)
    people = count_units(source, schema, test_fraction=choice.test_fraction, seed=seed)
    knots = 0
    if people:
        budget = _epsilon_to_learn(options) if is_private else 1.0
        is_regression = not schema.target.classes
        knots = knots_for(people, budget, len(schema.used), is_regression=is_regression)
    encoder = Encoder(provisional(schema, estimated), knots=knots)
    parts = _load(choice, source, encoder, seed)
    test_source = choice.open_test()
    if estimated and test_source is not None:
        test_source = parsed_once(test_source, memory=_MEMORY)
    test = _test(test_source, encoder, parts)
    return PreparedTable(
        options,
        choice,
        schema,
        estimated,
        _base_plan(options, schema, parts.train.units),
        knots,
        seed,
        secret,
        None if estimated else parts,
        None if estimated else test,
        stamps,
        source if estimated else None,
        test_source if estimated else None,
        words_not_covered(schema, estimated, drafted=drafted),
        repeated_identifiers(source, schema) if schema.id is None else (),
    )


def _stamps(choice: TableChoice) -> dict[str, tuple[int, int]]:
    """Size and time of the last change of each file that is there."""
    found = {}
    for what, path in choice.files().items():
        if path.exists():
            seen = path.stat()
            found[what] = (seen.st_size, seen.st_mtime_ns)
    return found


def _file_checksum(key: bytes, path: Path) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _split_seed(key: bytes) -> int:
    """The seed of the split: the same for the same key, and no help in finding the key."""
    digest = hmac.digest(key, b"split of the table", hashlib.sha256)
    return int.from_bytes(digest[:8], "little") >> 1


def _refuse_options_of_networks(options: RunOptions) -> None:
    network_kind(options)
    for field in fields(RunOptions):
        if field.name not in _OF_NETWORKS:
            continue
        value = getattr(options, field.name)
        if value != field.default:
            raise DpvdError(
                f"{field.name} can be chosen for networks on images only: the model of a table"
                " follows from its size and the budget"
            )


def _epsilon_to_learn(options: RunOptions) -> float:
    assert options.epsilon is not None  # checked at construction
    return options.epsilon - (options.private_bounds or 0.0)


def _check_estimates(options: RunOptions, estimated: list[str], schema: Schema) -> None:
    if estimated and options.private_bounds is None:
        raise DpvdError(
            f"the schema leaves bounds or categories of {estimated[0]!r} to be estimated: give"
            " --private-bounds, the part of ε to spend on that"
        )
    if options.private_bounds is not None and not estimated:
        raise DpvdError(
            "there is nothing to estimate, the schema has all bounds and categories: leave out"
            " --private-bounds"
        )


def _base_plan(options: RunOptions, schema: Schema, people: int) -> PrivacyPlan:
    facts = list(schema.public_facts())
    public = facts if options.public is None else [*facts, *options.public]
    return PrivacyPlan(
        examples=people,
        batch_size=people,
        steps=1,
        relation=options.relation,
        noise=NoiseKind.SEEDED if options.seeded_noise else NoiseKind.SYSTEM,
        seed=options.seed if options.seeded_noise else None,
        unit=options.unit or schema.unit_words,
        tuned=None if options.tuned is None else tuple(options.tuned),
        public=tuple(public) if public or options.public is not None else None,
        initial_weights="zeros",
    )


def _load(choice: TableChoice, source: TableSource, encoder: Encoder, seed: int) -> TableParts:
    return load_table(
        source, encoder, test_fraction=choice.test_fraction, seed=seed, memory=_MEMORY
    )


def _test(source: TableSource | None, encoder: Encoder, parts: TableParts) -> EncodedTable | None:
    """The rows to test on: of a table of their own, or kept back."""
    return parts.test if source is None else load_test(source, encoder)


def load_test(source: TableSource, encoder: Encoder) -> EncodedTable:
    """All rows of a table to test on."""
    schema = replace(encoder.schema, id=None, rows_per_unit=None)
    plain = replace(encoder, schema=schema)
    return load_table(source, plain, seed=0, memory=_MEMORY).train
