"""Published figures: readers, rules on both sides, and the tables of four student reports (data/README.md)."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.claims import Claim, audit_claims, read
from analysis.loading import model_work
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import UsageError

LAPTOP = "NVIDIA GeForce RTX 4080 Laptop GPU"
V100 = "Tesla V100-SXM2-16GB"
RESNET50 = model_work.table()["resnet50", 224].train_flop_per_image


def claim(**cells: Any) -> Claim:
    return Claim(**{"name": "row", "device_name": "NVIDIA L4", "model": "resnet50", "batch_size": 64.0, **cells})


def counted(share: float, **cells: Any) -> Claim:
    """A claim on a step of 64 images in 1 s, with `share` of the model's FLOP."""
    return claim(step_s=1.0, flop_per_s=64 * share * RESNET50, **cells)


def of_report_a(model: str, batch: int, device: str, rate: float, flop: float, efficiency: float, peak: float) -> Claim:
    figures = {"images_per_s": rate, "flop_per_s": flop, "efficiency": efficiency, "peak_flop_per_s": peak}
    return claim(model=model, batch_size=float(batch), device_name=device, **figures)


def of_report_b(model: str, device: str, gb: float, step_s: float, gflop: float, intensity: float) -> Claim:
    figures = {"bytes_per_s": gb * 1e9, "flop_per_s": gflop * 1e9, "intensity_flop_per_byte": intensity}
    return claim(model=model, device_name=device, step_s=step_s, **figures)


CASES = {
    # MACs counted as FLOP are about half of what the model needs.
    "39 % of the FLOP": claim(images_per_s=100.0, flop_per_s=39 * RESNET50),
    "50 % of the FLOP": claim(images_per_s=100.0, flop_per_s=50 * RESNET50),
    "61 % of the FLOP": claim(images_per_s=100.0, flop_per_s=61 * RESNET50),
    "a laptop's highest peak": claim(device_name=LAPTOP, peak_flop_per_s=33.9e12),
    "a laptop's lowest peak": claim(device_name=LAPTOP, peak_flop_per_s=20e12),
    "a desktop's peak": claim(device_name=LAPTOP, peak_flop_per_s=48.7e12),
    "a peak with sparsity": claim(peak_flop_per_s=242e12),
    "a peak within 3 %": claim(peak_flop_per_s=31e12),
    "an unknown device": claim(device_name="Unknown 9000", peak_flop_per_s=1e12),
    "below both roofs": claim(flop_per_s=30e12, bytes_per_s=299e9),
    "above both roofs": claim(flop_per_s=31e12, bytes_per_s=310e9),
    "below the roof of amp": claim(flop_per_s=31e12, precision="amp"),
    "71 % counted": counted(0.71),
    "69 % counted on a device with TF32": counted(0.69),
    "69 % counted on one without": counted(0.69, device_name="Tesla T4"),
    "69 % counted in amp": counted(0.69, precision="amp"),
    "149 % counted": counted(1.49),
    "151 % counted": counted(1.51),
    "an image size that is not in the table": counted(0.1, image_size=33.0),
    "milliseconds for seconds": claim(flop_per_step=270e9, peak_flop_per_s=8.1e12, estimated_step_s=33.33),
    "seconds": claim(flop_per_step=270e9, peak_flop_per_s=8.1e12, estimated_step_s=0.03333),
    "a slow step": claim(flop_per_step=270e9, peak_flop_per_s=8.1e12, estimated_step_s=3.3),
    "FLOP/byte within 2 %": claim(flop_per_s=1e12, bytes_per_s=1e11, intensity_flop_per_byte=10.1),
    "other FLOP/byte": claim(flop_per_s=1e12, bytes_per_s=1e11, intensity_flop_per_byte=10.3),
    # Model, batch size, device, images/s, TFLOP/s, efficiency and peak as published.
    "report A, 1": of_report_a("resnet18", 128, LAPTOP, 1107, 5.5e12, 0.114, 48.7e12),
    "report A, 2": of_report_a("resnet50", 32, LAPTOP, 359, 4.1e12, 0.085, 48.7e12),
    "report A, 3": of_report_a("resnet50", 64, LAPTOP, 366, 4.2e12, 0.086, 48.7e12),
    "report A, 4": of_report_a("resnet18", 128, "Tesla T4", 650, 2.9e12, 0.362, 8.1e12),
    "report A, 5": of_report_a("resnet50", 64, "Tesla T4", 117, 1.3e12, 0.161, 8.1e12),
    # Model, device, GB/s, s per step, GFLOP/s and FLOP/byte as published.
    "report B, 1": of_report_b("resnet50", "Tesla T4", 147.8, 0.7590, 1615, 10.92),
    "report B, 2": of_report_b("resnet50", "NVIDIA L4", 215.4, 0.9508, 204.8, 0.9235),
    "report B, 3": of_report_b("resnet50", V100, 436.2, 0.1867, 6570, 15.06),
    "report B, 4": of_report_b("mobilenet_v2", "Tesla T4", 146.7, 0.2204, 544.5, 3.711),
    "report B, 5": of_report_b("mobilenet_v2", "NVIDIA L4", 179.6, 0.1174, 2224, 12.47),
    "report B, 6": of_report_b("mobilenet_v2", V100, 396.5, 0.0612, 2094, 5.282),
    "report B, 7": of_report_b("vit_b_16", "Tesla T4", 70.47, 0.7306, 2336, 33.15),
    "report B, 8": of_report_b("vit_b_16", "NVIDIA L4", 79.67, 0.2777, 5992, 75.21),
    "report B, 9": of_report_b("vit_b_16", V100, 207.6, 0.1688, 10113, 48.72),
}


def test_findings_on_published_figures(golden: Golden) -> None:
    lines = []
    for name, one in CASES.items():
        findings = [f"{finding.rule}: {finding.figure}" for finding in audit_claims([one])]
        lines += [f"## {name}", *(findings or ["no finding"])]
    golden("claims.txt", "\n".join([*lines, ""]))


# --- the file


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text("name,device_name,model,batch_size,precision\nB,Tesla T4,resnet50,64,\n", encoding="utf-8")
    assert read(path) == [Claim(name="B", device_name="Tesla T4", model="resnet50", batch_size=64.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,model\na,b\n", "has no column device_name"),
        ("name,device_name,model,speed\na,b,c,1\n", "has the unknown column 'speed'"),
        ("name,device_name,model,step_s\na,b,c,fast\n", "line 2: step_s must be a positive number; got 'fast'"),
        ("name,device_name,model,step_s\na,b,c,-1\n", "line 2: step_s must be a positive number; got '-1'"),
        ("name,device_name,model,step_s\na,b,c,inf\n", "line 2: step_s must be a positive number; got 'inf'"),
        ("name,device_name,model\na,,c\n", "line 2 has no device_name"),
        ("name,device_name,model\na,b,c,d\n", "line 2 has too many cells"),
        ("", "has no column name"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "published.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read(path)
    assert str(refused.value).endswith(message)
