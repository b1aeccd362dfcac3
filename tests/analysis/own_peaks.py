"""A user's own file of peaks."""

from pathlib import Path


def own_t4(path: Path, *, tflop_per_s: float, device_name: str = "Tesla T4") -> Path:
    """Write a file with one device, and return its path."""
    path.write_text(
        '[source.mine]\ntitle = "a bench of the lab"\nread = "2026-11"\n\n'
        f'[[gpu]]\ngpu = "T4"\nnames = ["{device_name}"]\ngb_per_s = 290\nsource = "mine"\n'
        f'peak = [{{ precision = "fp32", tflop_per_s = {tflop_per_s}, source = "mine" }}]\n'
    )
    return path
