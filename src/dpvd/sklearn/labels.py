"""Labels of classes: as users have them, as a schema writes them, as numbers from 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpvd.data import TRUE_WORDS, canonical_text
from dpvd.errors import DpvdError

__all__ = ["codes_of", "declared_labels", "label_text"]


def label_text(label: Any) -> str:
    """Return a label as a schema writes it: 1, 1.0 and "1" are the same.

    >>> label_text(np.float64(1.0)), label_text(np.True_), label_text(" ill ")
    ('1', 'true', 'ill')
    """
    return canonical_text(label.item() if isinstance(label, np.generic) else label)


def declared_labels(texts: Sequence[str], kind: np.dtype[Any]) -> np.ndarray:
    """Return the classes of a schema as labels of y's type, sorted.

    >>> declared_labels(["1", "0"], np.dtype(int)).tolist()
    [0, 1]
    """
    if kind.kind == "b":
        return np.unique([text.lower() in TRUE_WORDS for text in texts])
    if kind.kind not in "iuf":
        return np.unique(np.asarray(texts, dtype=object))
    try:
        return np.unique([kind.type(text) for text in texts])
    except ValueError:
        raise DpvdError(
            f"the schema has the classes {', '.join(texts)}, but y holds numbers: pass y with"
            " these names, or declare its numbers"
        ) from None


def codes_of(y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the position of each label, int64.

    Args:
        y: [n], labels.
        labels: all of them, sorted.

    Raises:
        DpvdError: if one is not among them.
    """
    known = {label: code for code, label in enumerate(labels.tolist())}
    codes = np.array([known.get(label, -1) for label in y.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise DpvdError(
            f"row {row + 1} of y has the class {y.tolist()[row]!r}, which was not declared: the"
            f" classes are {', '.join(map(str, labels.tolist()))}"
        )
    return codes
