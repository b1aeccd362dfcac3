import pytest

from analysis.readers import training_logs
from tests.analysis.readers.logs.trainer_logs import (
    timm,
)


@pytest.mark.parametrize("batch_size", [1, 32, 100, 1024])
def test_batch_from_rate_and_time(batch_size: int) -> None:
    table = training_logs.read(timm(batch_size=batch_size))
    assert table is not None
    assert table.labels["batch_size"] == str(batch_size)


@pytest.mark.parametrize(
    "text", ["", "hello", "Epoch 1: loss 0.3", "Train: 0 [0/3] Loss: 1", '{"train_runtime": []}', "iter 3: loss 2"]
)
def test_other_texts_are_no_training_logs(text: str) -> None:
    assert training_logs.read(text) is None
