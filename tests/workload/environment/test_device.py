import pytest
import torch

from workload.environment import device


@pytest.mark.parametrize(
    ("text", "free_bytes", "expected"),
    [
        ("FIND was unable to find an engine to execute this computation", 200_000_000, True),
        ("GET was unable to find an engine to execute this computation", 200_000_000, True),
        ("Unable to find a valid cuDNN algorithm to run convolution", 200_000_000, True),
        # With memory left cuDNN has no such algorithm: a fault, not a shortage.
        ("GET was unable to find an engine to execute this computation", 9_000_000_000, False),
        ("CUDNN_STATUS_ALLOC_FAILED", 9_000_000_000, True),
        ("mat1 and mat2 shapes cannot be multiplied", 200_000_000, False),
    ],
)
def test_what_cudnn_says_for_want_of_memory(
    text: str, free_bytes: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 24_000_000_000))
    assert device.is_out_of_memory(RuntimeError(text)) is expected
