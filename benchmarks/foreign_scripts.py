"""Training loops that packages of the registry ship, run unmodified under measurement.

    pip install transformers accelerate timm lightning
    python benchmarks/foreign_scripts.py                 all of them; on a CPU a minute or two
    python benchmarks/foreign_scripts.py timm lightning  these

Each is run twice, alone and under `python -m rooflaunch script --then continue`, and must print the same. Its step,
FLOP against a count by hand and the share of the operations' time without a formula are shown. Nothing is downloaded.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIGEST = """
import hashlib, torch
def digest(model):
    known = hashlib.sha256()
    for tensor in model.state_dict().values():
        known.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("digest", known.hexdigest()[:16])
"""
TRANSFORMERS = """
import tempfile, torch, transformers
from torch.utils.data import Dataset
torch.manual_seed(0)
class Ids(Dataset):
    def __len__(self): return 160
    def __getitem__(self, index):
        ids = torch.randint(100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}
config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=16)
model = transformers.GPT2LMHeadModel(config)
with tempfile.TemporaryDirectory() as folder:
    given = transformers.TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        report_to=[], save_strategy="no", eval_strategy="steps", eval_steps=10, logging_steps=10, disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=given, train_dataset=Ids(), eval_dataset=Ids())
    trainer.train()
digest(model)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(640, 32), torch.randint(10, (640,))), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
digest(model)
"""
TIMM = """
import timm, torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV2
from torch.utils.data import DataLoader, TensorDataset
import numpy as np
np.random.seed(0); torch.manual_seed(0)
model = timm.create_model("resnet10t", num_classes=10)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.01)
mixup, ema = Mixup(mixup_alpha=0.2, num_classes=10), ModelEmaV2(model)
loader = DataLoader(TensorDataset(torch.randn(80, 3, 64, 64), torch.randint(10, (80,))), batch_size=4)
for x, y in loader:
    x, y = mixup(x, y)
    loss = SoftTargetCrossEntropy()(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
digest(model)
"""
LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, _):
        self.log("loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
lightning.seed_everything(0)
data = TensorDataset(torch.randn(160, 32), torch.randint(10, (160,)))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, val_check_interval=10,
)
module = Module()
trainer.fit(module, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=40))
digest(module)
"""


def product(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """`flop` None: not counted by hand."""

    text: str
    step: str
    flop: int | None = None


LOOPS = {
    "transformers": Foreign(
        text=TRANSFORMERS,
        step="a step = 2 backward passes and 1 AdamW step, 128 tokens",
        # GPT-2: 12 x width^2 a layer, the head; attention of 8 x 2 heads. The loss leaves out no position.
        flop=3 * (2 * product(128, 32, 12 * 32) + product(128, 32, 100) + 2 * 2 * product(8 * 2 * 16, 16, 16)),
    ),
    "accelerate": Foreign(
        text=ACCELERATE,
        step="a step = 4 backward passes and 1 AdamW step, 16 samples",
        flop=2 * product(16, 32, 64) + 3 * product(16, 64, 10),
    ),
    "timm": Foreign(text=TIMM, step="a step = 1 backward pass and 1 Lamb step, 4 images"),
    "lightning": Foreign(
        text=LIGHTNING,
        step="a step = 1 backward pass and 1 SGD step, 8 samples",
        flop=2 * product(8, 32, 64) + 3 * product(8, 64, 10),
    ),
}


def check(name: str, loop: Foreign, folder: Path) -> bool:
    """Run it both ways and print a line; whether everything is as it should be."""
    script, results = folder / f"{name}_loop.py", folder / name
    script.write_text(DIGEST + loop.text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ours = ["-m", "rooflaunch", "script", "--no-ceilings", "--warmup", "1", "--iterations", "6", "--then", "continue"]
    commands = ([], [*ours, "-o", str(results), "--"])
    alone, measured = (
        subprocess.run(
            [sys.executable, *words, str(script)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=folder,
        )
        for words in commands
    )
    digests = [[line for line in done.stdout.splitlines() if line.startswith("digest")] for done in (alone, measured)]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("*/run.json")]
    if not records:
        print(f"{name}: no bundle\n{alone.stderr[-500:]}\n{measured.stderr[-1500:]}", flush=True)
        return False
    work, step = records[0]["complexity"], records[0]["spec"]["script"]["step"]
    flop, same = work["train_flop_per_step"], digests[0] == digests[1] != []
    error = None if loop.flop is None else flop / loop.flop - 1
    by_hand = "not counted by hand" if error is None else f"{error:+.3%} of those by hand"
    print(f"{name}: {step}", flush=True)
    print(f"  {flop:,} FLOP ({by_hand}), {work['unattributed_share']:.1%} of the time unattributed", flush=True)
    print(f"  the same results: {same}; gaps: {records[0]['timing']['gaps']}", flush=True)
    print(f"  unattributed: {list(work['unattributed'])[:4]}", flush=True)
    right = step.startswith(loop.step) and same and work["unattributed_share"] <= 0.05
    return right and (error is None or abs(error) <= 0.001)


def main() -> int:
    """0 if every loop is measured right."""
    with tempfile.TemporaryDirectory() as name:
        wrong = [loop for loop in sys.argv[1:] or LOOPS if not check(loop, LOOPS[loop], Path(name))]
    print(f"wrong: {', '.join(wrong)}" if wrong else "all as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
