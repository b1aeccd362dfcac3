"""Published figures: readers, rules on both sides, and the tables of four student reports (data/README.md)."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.claims import Claim, audit_claims, read
from analysis.loading import model_work
from workload.contract.errors import UsageError

LAPTOP = "NVIDIA GeForce RTX 4080 Laptop GPU"
V100 = "Tesla V100-SXM2-16GB"
RESNET50 = model_work.table()["resnet50", 224].train_flop_per_image


def claim(**cells: Any) -> Claim:
    return Claim(**{"name": "row", "device_name": "NVIDIA L4", "model": "resnet50", "batch_size": 64.0, **cells})


def figures(one: Claim, rule: str) -> list[str]:
    return [finding.figure for finding in audit_claims([one]) if finding.rule == rule]


# --- rules


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.39, []),
        (0.5, ["12.1 GFLOP per image are published, but training takes 24.3: 0.50 x; 8 % of the peak of L4"]),
        (0.61, []),
        (1.0, []),
    ],
)
def test_macs_counted_as_flop(share: float, expected: list[str]) -> None:
    model = RESNET50

    assert figures(claim(images_per_s=100.0, flop_per_s=100 * share * model), "MACs counted as FLOP") == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"device_name": LAPTOP, "peak_flop_per_s": 33.9e12}, []),
        ({"device_name": LAPTOP, "peak_flop_per_s": 20e12}, []),
        (
            {"device_name": LAPTOP, "peak_flop_per_s": 48.7e12},
            ["48.7 TFLOP/s, which is that of RTX 4080; RTX 4080 Laptop has 20 to 33.9"],
        ),
        ({"peak_flop_per_s": 242e12}, ["242 TFLOP/s; L4 has 30.3"]),
        ({"peak_flop_per_s": 31e12}, []),
        ({"device_name": "Unknown 9000", "peak_flop_per_s": 1e12}, []),
    ],
)
def test_wrong_peak(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(claim(**facts), "wrong peak") == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"flop_per_s": 30e12, "bytes_per_s": 299e9}, []),
        (
            {"flop_per_s": 31e12, "bytes_per_s": 310e9},
            ["102.3 % of 30.3 TFLOP/s, 103.3 % of 300 GB/s"],
        ),
        ({"flop_per_s": 31e12, "precision": "amp"}, []),
    ],
)
def test_above_a_roof(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(claim(**facts), "above a roof") == expected


def counted(share: float, **cells: Any) -> Claim:
    """A claim on a step of 64 images in 1 s, with `share` of the model's FLOP."""
    return claim(step_s=1.0, flop_per_s=64 * share * RESNET50, **cells)


@pytest.mark.parametrize(
    ("one", "missing", "against"),
    [
        pytest.param(counted(0.71), 0, 0, id="enough"),
        pytest.param(counted(0.69), 1, 0, id="too few on a device with TF32"),
        pytest.param(counted(0.69, device_name="Tesla T4"), 0, 1, id="too few on one without"),
        pytest.param(counted(0.69, precision="amp"), 0, 1, id="too few in amp"),
        pytest.param(counted(1.49), 0, 0, id="not too many"),
        pytest.param(counted(1.51), 0, 1, id="too many"),
        pytest.param(counted(0.1, image_size=33.0), 0, 0, id="an image size that is not in the table"),
    ],
)
def test_counted_flop(one: Claim, missing: int, against: int) -> None:
    assert len(figures(one, "tensor FLOP missing")) == missing
    assert len(figures(one, "counted FLOP against model")) == against


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [(33.33, ["33.33 s are published for 270 GFLOP: 33.33 ms"]), (0.03333, []), (3.3, [])],
)
def test_wrong_unit_of_time(estimate: float, expected: list[str]) -> None:
    one = claim(flop_per_step=270e9, peak_flop_per_s=8.1e12, estimated_step_s=estimate)

    assert figures(one, "wrong unit of time") == expected


@pytest.mark.parametrize(
    ("intensity", "expected"),
    [(10.1, []), (10.3, ["10.3 FLOP/byte are published, but FLOP/s divided by bytes/s are 10"])],
)
def test_wrong_intensity(intensity: float, expected: list[str]) -> None:
    one = claim(flop_per_s=1e12, bytes_per_s=1e11, intensity_flop_per_byte=intensity)

    assert figures(one, "wrong intensity") == expected


# --- the published tables


REPORT_A = [
    # model, batch size, device, images/s, TFLOP/s, efficiency, peak
    ("resnet18", 128, LAPTOP, 1107, 5.5e12, 0.114, 48.7e12),
    ("resnet50", 32, LAPTOP, 359, 4.1e12, 0.085, 48.7e12),
    ("resnet50", 64, LAPTOP, 366, 4.2e12, 0.086, 48.7e12),
    ("resnet18", 128, "Tesla T4", 650, 2.9e12, 0.362, 8.1e12),
    ("resnet50", 64, "Tesla T4", 117, 1.3e12, 0.161, 8.1e12),
]


@pytest.mark.parametrize(("model", "batch", "device", "rate", "flop", "efficiency", "peak"), REPORT_A)
def test_report_a_counts_macs(
    model: str, batch: int, device: str, rate: float, flop: float, efficiency: float, peak: float
) -> None:
    one = claim(
        model=model,
        batch_size=batch,
        device_name=device,
        images_per_s=rate,
        flop_per_s=flop,
        efficiency=efficiency,
        peak_flop_per_s=peak,
    )

    assert len(figures(one, "MACs counted as FLOP")) == 1
    assert len(figures(one, "wrong peak")) == (device == LAPTOP)


def test_the_right_efficiency_is_beside_the_wrong_one() -> None:
    one = claim(device_name=LAPTOP, images_per_s=366.0, flop_per_s=4.2e12, efficiency=0.086, peak_flop_per_s=48.7e12)

    (figure,) = figures(one, "MACs counted as FLOP")

    assert figure == (
        "11.5 GFLOP per image are published, but training takes 24.3: 0.47 x; 26.2 % to 44.5 % (by power "
        "limit) of the peak of RTX 4080 Laptop, not 8.6 %"
    )


REPORT_B = [
    # model, device, GB/s, s per step, GFLOP/s, FLOP/byte, and the rules it breaks
    ("resnet50", "Tesla T4", 147.8, 0.7590, 1615, 10.92, set()),
    ("resnet50", "NVIDIA L4", 215.4, 0.9508, 204.8, 0.9235, {"tensor FLOP missing", "wrong intensity"}),
    ("resnet50", V100, 436.2, 0.1867, 6570, 15.06, set()),
    ("mobilenet_v2", "Tesla T4", 146.7, 0.2204, 544.5, 3.711, set()),
    ("mobilenet_v2", "NVIDIA L4", 179.6, 0.1174, 2224, 12.47, {"counted FLOP against model"}),
    ("mobilenet_v2", V100, 396.5, 0.0612, 2094, 5.282, set()),
    ("vit_b_16", "Tesla T4", 70.47, 0.7306, 2336, 33.15, {"counted FLOP against model"}),
    ("vit_b_16", "NVIDIA L4", 79.67, 0.2777, 5992, 75.21, {"tensor FLOP missing"}),
    ("vit_b_16", V100, 207.6, 0.1688, 10113, 48.72, {"counted FLOP against model"}),
]


@pytest.mark.parametrize(("model", "device", "gb", "step_s", "gflop", "intensity", "expected"), REPORT_B)
def test_report_b(
    model: str, device: str, gb: float, step_s: float, gflop: float, intensity: float, expected: set[str]
) -> None:
    one = claim(
        model=model,
        device_name=device,
        bytes_per_s=gb * 1e9,
        step_s=step_s,
        flop_per_s=gflop * 1e9,
        intensity_flop_per_byte=intensity,
    )

    assert {finding.rule for finding in audit_claims([one])} == expected


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


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "nothing.csv")
