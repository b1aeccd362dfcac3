import json
from pathlib import Path
from typing import Any

import pytest

from workload.steps import complexity, complexity_cache
from workload.steps.complexity import Complexity


def asked(**changes: Any) -> dict[str, Any]:
    return {"model": "squeezenet1_1", "num_classes": 10, "image_size": 64, "batch_size": 2, "device": "cpu"} | changes


@pytest.fixture(scope="module")
def counted() -> Complexity:
    return complexity.count(**asked(), with_fvcore=True)


def test_a_count_is_read_as_it_was_written(tmp_path: Path, counted: Complexity) -> None:
    assert complexity_cache.read(tmp_path, asked()) is None
    complexity_cache.write(tmp_path, asked(), counted)
    assert complexity_cache.read(tmp_path, asked()) == counted
    assert complexity_cache.read(tmp_path, asked(batch_size=4)) is None


def test_the_oldest_counts_make_room(tmp_path: Path, counted: Complexity) -> None:
    sizes = range(1, complexity_cache.MAX_ENTRIES + 3)
    for size in sizes:
        complexity_cache.write(tmp_path, asked(batch_size=size), counted)
    assert [size for size in sizes if not complexity_cache.read(tmp_path, asked(batch_size=size))] == [1, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"counted_by": "other code", "counts": {}}', '{"counts": 3}'])
def test_a_file_of_others_is_replaced(text: str, tmp_path: Path, counted: Complexity) -> None:
    (tmp_path / complexity_cache.CACHE_NAME).write_text(text)
    assert complexity_cache.read(tmp_path, asked()) is None
    complexity_cache.write(tmp_path, asked(), counted)
    assert complexity_cache.read(tmp_path, asked()) == counted


def test_counts_of_other_code_are_not_used(tmp_path: Path, counted: Complexity) -> None:
    complexity_cache.write(tmp_path, asked(), counted)
    path = tmp_path / complexity_cache.CACHE_NAME
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "counted_by": content["counted_by"].replace("torch", "x") + "+"}))
    assert complexity_cache.read(tmp_path, asked()) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, counted: Complexity) -> None:
    complexity_cache.write(tmp_path / "absent", asked(), counted)
    assert not list(tmp_path.iterdir())
