"""A run as an entry of the OpenDP Deployments Registry: YAML with the fields of its third tier.

References: the registry's fields as of its template for tier 3; registry.opendp.org.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from dpvd.privacy import round_up
from dpvd.report.facts import statement_facts
from dpvd.runs import RunRecord

__all__ = ["registry_entry", "registry_yaml", "to_yaml"]

# Characters that YAML does not allow inside quotes as they are, or reads as ends of lines.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")

_NO_EPSILON = "not differentially private: no finite epsilon holds"


def registry_yaml(
    record: RunRecord, declared: Mapping[str, str], *, with_test: bool = False
) -> str:
    """Return the registry's entry for a run, as YAML.

    Guarantees: what nobody declared is written as "not declared"; ε is never below what was spent;
    a run without a finite ε says so where ε would stand.

    Args:
        record: a run's record.
        declared: what people said of the release; see ``dpvd.report.facts.DECLARATIONS``.
        with_test: whether results on test data, which are exact, may be told.

    Raises:
        DpvdError: if a declaration has an unknown name or no words.
    """
    return to_yaml(registry_entry(record, declared, with_test=with_test))


def registry_entry(
    record: RunRecord, declared: Mapping[str, str], *, with_test: bool = False
) -> dict[str, Any]:
    """Return the entry of :func:`registry_yaml` as plain data."""
    facts = statement_facts(record, declared, with_test=with_test)
    return {
        "deployment": {
            "basic": _basic(facts),
            "dp_variant": {
                "variant_name": "Approximate DP" if record.is_private else _NO_EPSILON,
                "data_domain": facts["data_domain"],
                "unprotected_quantities": facts["public"],
            },
            "privacy_loss": _privacy_loss(record, facts),
            "deployment_model": _deployment_model(facts),
            "accounting": {
                "post_processing": facts["post_processing"],
                "composition": f"{facts['accounting']} {facts['composition']}",
            },
            "implementation": _implementation(facts),
            "administrative": {
                "status": "Draft",
                "tier": 3,
                "registry_authors": [facts["authors"]],
            },
        }
    }


def _basic(facts: Mapping[str, str]) -> dict[str, Any]:
    curator = {"data_curator_name": facts["owner"], "data_curator_type": facts["owner_type"]}
    return {
        "name": facts["name"],
        "data_curators": [curator],
        "description": facts["description"],
        "intended_use": facts["purpose"],
        "data_product_type": "Machine learning model",
        "data_product_region": facts["region"],
        "data_product_sector": facts["sector"],
        "publication_date": facts["publication_date"],
    }


def _privacy_loss(record: RunRecord, facts: Mapping[str, str]) -> dict[str, Any]:
    guarantee = record.guarantee
    parameters: dict[str, Any] = {"epsilon": _NO_EPSILON}
    if record.is_private:
        parameters = {
            "epsilon": float(round_up(guarantee["epsilon"])),
            "delta": float(guarantee["delta"]),
        }
    return {
        "privacy_unit": facts["unit"],
        "privacy_unit_details": f"{facts['adjacency']} Rows per unit: {facts['rows_per_unit']}",
        "privacy_parameters": parameters,
        "privacy_parameters_details": facts["formal"],
    }


def _deployment_model(facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "model_name": "Central",
        "actors": f"{facts['setting']} Holder of the data: {facts['owner']}",
        "release_type": "One release",
        "release_type_details": facts["released"],
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _implementation(facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "preprocessing_and_hyperparameter_tuning": (
            f"Preprocessing: {_ended(facts['preprocessing'])} {facts['tuning']}"
        ),
        "mechanisms": " ".join(
            [
                facts["mechanism"],
                facts["randomness"],
                facts["floating_point"],
                f"Timing: {facts['timing']}",
                f"Access control: {_ended(facts['access_control'])}",
                f"Code: {facts['code']}",
            ]
        ),
        "justification": f"{_ended(facts['justification'])} Approved by: {facts['approval']}",
        "utility": facts["utility"],
    }


def _ended(words: str) -> str:
    """Return words as the end of a sentence."""
    return words if words.endswith(".") else f"{words}."


def to_yaml(value: Any, indent: int = 0) -> str:
    r"""Return mappings, lists, texts and numbers as YAML; every text is quoted.

    >>> print(to_yaml({"name": "a: \"b\"", "numbers": [1, 1e-05]}), end="")
    name: "a: \"b\""
    numbers:
    - 1
    - 1.0e-05
    """
    margin = "  " * indent
    if isinstance(value, Mapping):
        return "".join(f"{margin}{key}:{_nested(item, indent + 1)}" for key, item in value.items())
    if isinstance(value, list):
        return "".join(f"{margin}-{_item(item, indent + 1)}" for item in value)
    return f"{margin}{_scalar(value)}\n"


def _nested(value: Any, indent: int) -> str:
    """Return what follows the colon after a key."""
    if isinstance(value, Mapping):
        return "\n" + to_yaml(value, indent)
    if isinstance(value, list):
        return "\n" + to_yaml(value, indent - 1)
    return f" {_scalar(value)}\n"


def _item(value: Any, indent: int) -> str:
    """Return what follows the hyphen of an entry; a mapping begins on the same line."""
    if isinstance(value, Mapping | list):
        return " " + to_yaml(value, indent).lstrip(" ")
    return f" {_scalar(value)}\n"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        return repr(value).replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a text
    return json.dumps(value, allow_nan=False)
