"""Makes workload/stats/step_times.csv from published throughputs, and measures the rule of `step_times.expected`.

python benchmarks/step_times.py ../shared/data/published_throughput.csv   # makes the file, then measures
python benchmarks/step_times.py                                           # measures
"""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from workload.stats import step_times
from workload.steps import complexity

READ = "2026-11"
GPUS = {
    "T4": "T4",
    "L4": "L4",
    "V100-SXM2": "V100 SXM2",
    "V100-PCIE": "V100 PCIe",
    "RTX3090": "RTX 3090",
    "RTX4080-Laptop": "RTX 4080 Laptop",
    "RTX4080": "RTX 4080",
    "RTX4090": "RTX 4090",
    "A100-PCIE-40": "A100 40 GB",
    "A100-SXM-40": "A100 40 GB",
    "A100-PCIE-80": "A100 80 GB PCIe",
    "A100-SXM-80": "A100 80 GB SXM",
    "H100-PCIE": "H100 PCIe",
    "H100-SXM": "H100 SXM5",
    "H200-SXM": "H200 SXM",
}
# Half of the values with 16 bits are as fast as autocast on the same units.
PRECISIONS = {"fp16": "amp"}
# Programs of eager PyTorch, and the rows of each that are steps of a GPU: not of TensorFlow, MXNet and Paddle, whose
# kernels differ; not of gpuinsights, which compiles; not of ryu, which has no optimizer step.
PROGRAMS: dict[str, Callable[[str, float], bool]] = {
    **dict.fromkeys(("lambda_pt", "sandeep", "nvidia_pytorch", "timm", "dhairya", "gavel"), lambda _gpu, _s: True),
    # On an RTX 4090 under Windows this program waits for its JPEG input: half of Lambda's rate.
    "jcxal": lambda gpu, _s: gpu == "L4",
    # Host and JPEG input take 0.12 to 0.21 s of each step: at most a quarter of these.
    "sia": lambda gpu, step_s: gpu == "T4" and step_s > 4 * 0.21,
}
COLUMNS = "gpu,model,precision,batch,img_per_s,flop,bytes_lower,bytes_upper,program,source,read".split(",")


def made(published: Path) -> Iterator[dict[str, str | float]]:
    """Rows of the file: comparable steps on GPUs whose peaks are known."""
    for row in csv.DictReader(published.open(encoding="utf-8", newline="")):
        notes = dict(part.split("=", 1) for part in row["notes"].split(";")[:3])
        # NVIDIA's example: 256 images by default.
        batch = int(row["batch"] or 256)
        is_step = PROGRAMS.get(notes["stack"], lambda _gpu, _s: False)
        if (
            row["gpu"] not in GPUS
            or notes["tier"] not in "AB"
            or not is_step(row["gpu"], batch / float(row["img_per_s"]))
        ):
            continue
        precision = PRECISIONS.get(row["precision"], row["precision"])
        work = complexity.count(row["model"], num_classes=1000, image_size=224, batch_size=batch, precision=precision)
        yield {
            "gpu": GPUS[row["gpu"]],
            "model": row["model"],
            "precision": precision,
            "batch": batch,
            "img_per_s": float(row["img_per_s"]),
            "flop": work.train_flop_per_step,
            "bytes_lower": work.bytes_per_step_lower,
            "bytes_upper": work.bytes_per_step_upper,
            "program": f"{notes['stack']} {notes['format']}".strip(),
            "source": row["source"],
            "read": READ,
        }


def main() -> None:
    if len(sys.argv) > 1:
        rows = list(made(Path(sys.argv[1])))
        with step_times.ROWS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(len(step_times.published()), "steps")


if __name__ == "__main__":
    main()
