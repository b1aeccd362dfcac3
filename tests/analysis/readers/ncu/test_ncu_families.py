"""kernel_names.tsv has real names: of public ncu, nsys and torch.profiler outputs, arguments shortened."""

import csv
from pathlib import Path

import pytest

from analysis.readers.ncu.metrics import Family, family, is_backward
from workload.contract.vocabulary import names_tensor_cores

with Path(__file__).with_name("kernel_names.tsv").open(encoding="utf-8", newline="") as _lines:
    NAMES = list(csv.DictReader(_lines, delimiter="\t", quoting=csv.QUOTE_NONE))
IDS = [row["name"][:60] for row in NAMES]


@pytest.mark.parametrize("row", NAMES, ids=IDS)
def test_family(row: dict[str, str]) -> None:
    assert family(row["name"]) == row["family"]


@pytest.mark.parametrize("row", NAMES, ids=IDS)
def test_tensor_cores_by_name(row: dict[str, str]) -> None:
    assert names_tensor_cores(row["name"]) is (row["tensor_cores"] == "yes")


@pytest.mark.parametrize("row", NAMES, ids=IDS)
def test_backward_by_name(row: dict[str, str]) -> None:
    assert is_backward(row["name"]) is (row["backward"] == "yes")


def test_every_family_has_real_names() -> None:
    assert {row["family"] for row in NAMES} == set(Family)
    for question in ("tensor_cores", "backward"):
        assert {row[question] for row in NAMES} == {"yes", "no"}


def test_a_name_without_anything_known() -> None:
    assert family("") is Family.OTHER
    assert not names_tensor_cores("")
    assert not is_backward("")
