"""What the standards ask of a privacy statement, item by item, and where a run answers it.

References: Ponomareva et al. (2023), How to DP-fy ML, arXiv 2303.00654, section 5.3.3; NIST SP
800-226 (2025), Guidelines for Evaluating Differential Privacy Guarantees.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dpvd.report.facts import NOT_DECLARED, statement_facts
from dpvd.runs import RunRecord

__all__ = ["ITEMS", "Answer", "Item", "checklist"]

DP_FY = "DP-fy ML 5.3.3"
NIST = "NIST SP 800-226"


@dataclass(frozen=True)
class Item:
    """Something that a statement has to say.

    Args:
        title: in a few words.
        asked_by: the standards that ask for it.
        facts: which points of :func:`dpvd.report.facts.statement_facts` answer it.
        where: where these stand in ``record.json`` and on the page.
    """

    title: str
    asked_by: tuple[str, ...]
    facts: tuple[str, ...]
    where: str


BOTH = (DP_FY, NIST)

ITEMS = (
    Item("Setting and who is trusted", BOTH, ("setting", "owner"), "declared.owner"),
    Item(
        "Which accesses to the data are covered",
        BOTH,
        ("covered", "preprocessing"),
        "guarantee.not_covered, dataset.preprocessing",
    ),
    Item("What is released", (DP_FY,), ("released",), "model.safetensors, guarantee.sentence"),
    Item("Unit of privacy", BOTH, ("unit",), "guarantee.unit"),
    Item("Rows per unit", BOTH, ("rows_per_unit",), "declared.rows_per_unit"),
    Item("Adjacency", BOTH, ("adjacency",), "guarantee.relation"),
    Item("Mechanism", (NIST,), ("mechanism",), "plan.clipping, guarantee.noise_multiplier"),
    Item("Type of accounting", BOTH, ("accounting",), "guarantee.accountant"),
    Item("Its assumptions", (DP_FY,), ("assumptions",), "guarantee.sampling"),
    Item("Whether they were met", (DP_FY,), ("met",), "guarantee.seen"),
    Item("Formal statement for the model", BOTH, ("formal",), "guarantee.sentence"),
    Item("Formal statement for tuning", (DP_FY,), ("tuning",), "guarantee.tuned"),
    Item("What is not protected", (NIST,), ("public",), "guarantee.public, guarantee.undeclared"),
    Item(
        "Composition with earlier runs",
        BOTH,
        ("composition",),
        "guarantee.seen, declared.earlier_runs",
    ),
    Item("Post-processing", (NIST,), ("post_processing",), "docs/guarantee.md"),
    Item("Floating point", (NIST,), ("floating_point",), "docs/noise.md"),
    Item("Timing and other side channels", (NIST,), ("timing",), "docs/sharp-edges.md"),
    Item("Randomness", (NIST,), ("randomness",), "guarantee.noise_source"),
    Item("Utility", (NIST,), ("utility",), "test"),
    Item("Bias", (NIST,), ("bias",), "declared.bias"),
    Item("Data collection", (NIST,), ("data_collection",), "declared.data_collection"),
    Item("Access control", (NIST,), ("access_control",), "declared.access_control"),
    Item("Code, versions and commit", BOTH, ("code",), "version, environment"),
    Item("Purpose", (NIST,), ("purpose",), "declared.purpose"),
    Item("Approval", (NIST,), ("approval",), "declared.approval"),
)


@dataclass(frozen=True)
class Answer:
    """One line of the checklist: what is asked, what this run says, where it says it."""

    item: str
    asked_by: str
    says: str
    where: str

    @property
    def open(self) -> bool:
        """Whether something that only people know has not been said."""
        return NOT_DECLARED in self.says


def checklist(
    record: RunRecord, declared: Mapping[str, str], *, with_test: bool = False
) -> list[Answer]:
    """Return an answer to each item, "not declared" where nobody gave one.

    Args:
        record: a run's record.
        declared: what people said of the release; see ``dpvd.report.facts.DECLARATIONS``.
        with_test: whether results on test data may be told.

    Raises:
        DpvdError: if a declaration has an unknown name or no words.
    """
    facts = statement_facts(record, declared, with_test=with_test)
    return [
        Answer(
            item=item.title,
            asked_by=", ".join(item.asked_by),
            says=_joined([facts[name] for name in item.facts], item),
            where=item.where,
        )
        for item in ITEMS
    ]


def _joined(said: list[str], item: Item) -> str:
    """Return several facts as one text; a bare declaration after the first says what it is."""
    first, *rest = said
    named = [
        f"{name.capitalize()}: {text}" for name, text in zip(item.facts[1:], rest, strict=True)
    ]
    return " ".join([first, *(text if text.endswith(".") else f"{text}." for text in named)])
