"""The registry's entry: fields of tier 3, YAML that parses back, nothing that nobody said."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dpvd.errors import DpvdError
from dpvd.report.facts import DECLARATIONS, NOT_DECLARED
from dpvd.report.registry import registry_entry, registry_yaml, to_yaml
from dpvd.runs import DRAWN, RunRecord

read = RunRecord.from_dict

FIELDS = {
    "basic": {
        "name",
        "data_curators",
        "description",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "data_product_sector",
        "publication_date",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name",
        "actors",
        "release_type",
        "release_type_details",
        "data_source_type",
        "access_type",
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {
        "preprocessing_and_hyperparameter_tuning",
        "mechanisms",
        "justification",
        "utility",
    },
    "administrative": {"status", "tier", "registry_authors"},
}


def leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_the_entry_has_the_fields_of_tier_3(record):
    deployment = registry_entry(read(record), {})["deployment"]
    assert {name: set(part) for name, part in deployment.items()} == FIELDS


def test_yaml_reads_back_as_what_was_written(record):
    declared = {"owner": 'Ward "7": A & B\nfloor #2', "purpose": "triage: yes"}
    entry = registry_entry(read(record), declared)
    assert yaml.safe_load(registry_yaml(read(record), declared)) == entry


def test_nothing_declared_is_written_as_such_and_nothing_is_made_up(record):
    basic = registry_entry(read(record), {})["deployment"]["basic"]
    fixed = basic.pop("data_product_type")
    assert fixed == "Machine learning model"
    assert set(leaves(basic)) == {NOT_DECLARED}


@pytest.mark.parametrize("name", sorted(set(DECLARATIONS) - {"bias", "data_collection"}))
def test_what_was_declared_arrives(record, name):
    assert "zebra crossing" in registry_yaml(read(record), {name: "zebra crossing"})


def test_epsilon_is_a_number_never_below_what_was_spent(record):
    record["guarantee"]["epsilon"] = 0.123456789
    found = yaml.safe_load(registry_yaml(read(record), {}))["deployment"]["privacy_loss"]
    parameters = found["privacy_parameters"]
    assert parameters == {"epsilon": 0.1235, "delta": 1e-05}
    assert found["privacy_parameters_details"] == record["guarantee"]["sentence"]


def test_the_account_of_the_data_is_told(record):
    words = f"{DRAWN}, whose limit for all runs together is (3, 1e-05)"
    record["guarantee"]["seen"] = [words]
    accounting = registry_entry(read(record), {})["deployment"]["accounting"]
    assert words in accounting["composition"]


@pytest.mark.parametrize("epsilon", ["inf", None])
def test_a_run_without_privacy_states_no_number(record, epsilon):
    record["guarantee"]["epsilon"] = epsilon
    deployment = registry_entry(read(record), {})["deployment"]
    assert (
        "not differentially private" in deployment["privacy_loss"]["privacy_parameters"]["epsilon"]
    )
    assert "not differentially private" in deployment["dp_variant"]["variant_name"]
    assert "delta" not in deployment["privacy_loss"]["privacy_parameters"]


def test_a_record_that_says_little_makes_an_entry_without_claims(bare):
    entry = registry_entry(read(bare), {})["deployment"]
    assert "not differentially private" in entry["dp_variant"]["variant_name"]
    assert NOT_DECLARED in entry["implementation"]["preprocessing_and_hyperparameter_tuning"]


@pytest.mark.parametrize("declared", [{"signature": "x"}, {"owner": ""}, {"owner": 7}])
def test_declarations_are_checked(record, declared):
    with pytest.raises(DpvdError, match=r"declaration|owner must be words"):
        registry_yaml(read(record), declared)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z][a-z_]{3,9}", fullmatch=True), inner, min_size=1)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_plain_data_survives_yaml(value):
    assert yaml.safe_load(to_yaml(value)) == value
