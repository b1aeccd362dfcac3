"""A folder of a user's with a script whose steps take a fraction of a millisecond, in a git repository of its own."""

import subprocess
from pathlib import Path

SCRIPT = """\
import os, sys, torch
from package.model import make
from torch.utils.data import DataLoader, TensorDataset
print("here:", *sorted(os.listdir()), "argv:", *sys.argv[1:], "gpus:", os.environ.get("CUDA_VISIBLE_DEVICES"))
if "--root" in sys.argv:
    print("data:", *sorted(os.listdir(sys.argv[sys.argv.index("--root") + 1])), "variable:", os.environ.get("MY_NOTE"))
open("written.txt", "w").close()
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in DataLoader(TensorDataset(torch.randn(160, 8), torch.randint(4, (160,))), batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""
FILES = {
    "train.py": SCRIPT,
    "package/__init__.py": "",
    "package/model.py": "import torch\n\n\ndef make():\n    return torch.nn.Linear(8, 4)\n",
    "package/train.py": "import runpy\nrunpy.run_path('train.py', run_name='__main__')\n",
    ".gitignore": "secrets.env\n*.pt\n",
}
UNTRACKED = {"secrets.env": "TOKEN=1\n", "weights.pt": "x", "notes.md": "mine\n"}
FEW = ("--cpu", "--warmup", "1", "--iterations", "3", "--no-ceilings")


def project(folder: Path) -> Path:
    """The folder, with files that git tracks, one that it does not, and two that it ignores."""
    for name, text in {**FILES, **UNTRACKED}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "init", "-q")
    git(folder, "add", *FILES)
    git(folder, "-c", "user.name=me", "-c", "user.email=me@box", "commit", "-qm", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()
