"""The commands of docs/frameworks.md, as they are typed, with the real frameworks on tiny random models and data.

The models and data lie where the commands name them, so that nothing is downloaded. Scripts that no package brings are
small ones that use the framework in the same way.
"""

import importlib.util
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from tests.docs import pages

SCRIPTS = Path(__file__).with_name("scripts")
FOREIGN = pages.ROOT / "benchmarks" / "foreign"
LOOPS = pages.ROOT / "tests" / "workload" / "scripts"
COMMANDS = pages.commands("docs/frameworks.md")
WORDS = [f"w{index}" for index in range(60)]
pytestmark = [pytest.mark.slow, pytest.mark.world]


class Case(NamedTuple):
    """How the sentence on a command's step begins, the packages that the command needs, and more words for it.

    `script`: file that stands for the script of this name in the reader's folder.
    """

    step: str
    packages: str
    script: tuple[str, Path] | None = None
    more: tuple[str, ...] = ()


ONE = "1 backward pass and 1"
CPU = ("--use_cpu",)
# In the order of the page.
CASES = (
    Case(f"{ONE} AdamW step, 8 s", "transformers accelerate", ("run_glue.py", SCRIPTS / "run_glue.py"), CPU),
    Case(f"{ONE} AdamW step, ", "trl peft datasets", more=(*CPU, "--max_length", "64")),
    Case("4 backward passes and 1 AdamW step, 16 s", "accelerate", ("train.py", FOREIGN / "accelerate_loop.py")),
    Case(f"{ONE} SGD step, 8 samples", "lightning", ("fit.py", FOREIGN / "lightning_loop.py")),
    Case(
        f"{ONE} SGD step, 4 images",
        "torchvision",
        ("references/classification/train.py", SCRIPTS / "classification.py"),
        ("--batch-size", "4", "--epochs", "4"),
    ),
    Case(f"{ONE} Lamb step, 4 images", "timm", ("train.py", FOREIGN / "timm_loop.py")),
    Case(f"{ONE} AdamW step, 4 ", "ultralytics", more=("imgsz=64", "batch=4", "nbs=4", "workers=0")),
    Case("5 backward passes and 1 AdamW step, ", "torch", ("train.py", LOOPS / "get_batch.py")),
)


def _models(folder: Path) -> None:
    """A tokenizer of 60 words and two tiny random models where the page names them, and texts of these words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    marks = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    known = {word: number for number, word in enumerate([*marks.values(), *WORDS])}
    words = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": len(known)}
    bert = transformers.BertConfig(**sizes, intermediate_size=64)
    qwen = transformers.Qwen3Config(**sizes, intermediate_size=64, num_key_value_heads=1, head_dim=16)
    for name, model in (
        ("google-bert/bert-base-uncased", transformers.BertForSequenceClassification(bert)),
        ("Qwen/Qwen3-0.6B", transformers.Qwen3ForCausalLM(qwen)),
    ):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "stanfordnlp" / "imdb").mkdir(parents=True)
    chosen = random.Random(0)
    rows = [json.dumps({"text": " ".join(chosen.choices(WORDS, k=chosen.randint(10, 60)))}) for _ in range(400)]
    (folder / "stanfordnlp" / "imdb" / "train.jsonl").write_text("\n".join(rows))


def _images(folder: Path) -> None:
    """Images in two classes, and the same with boxes for YOLO."""
    for index in range(16):
        name = f"train/{'ab'[index % 2]}/{index}"
        for path in (folder / "photos" / f"{name}.jpg", folder / "coco8" / "images" / f"{name}.jpg"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((64, 64), 40 + index).convert("RGB").save(path)
        boxes = folder / "coco8" / "labels" / f"{name}.txt"
        boxes.parent.mkdir(parents=True, exist_ok=True)
        boxes.write_text("0 0.5 0.5 0.3 0.3\n")
    place = f"path: {folder / 'coco8'}\ntrain: images/train\nval: images/train\nnames: [thing]\n"
    (folder / "coco8.yaml").write_text(place)


@pytest.mark.parametrize(
    ("command", "case"), [*zip(COMMANDS, CASES, strict=True)], ids=[case.packages for case in CASES]
)
def test_a_command_of_the_page_finds_its_step(command: pages.Command, case: Case, tmp_path: Path) -> None:
    for package in case.packages.split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'rooflaunch[frameworks]'")
    if {"trl", "transformers"} & {*case.packages.split()}:
        _models(tmp_path)
    _images(tmp_path)
    if case.script:
        target = tmp_path / case.script[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(case.script[1], target)
        for beside in (FOREIGN / "digest.py", LOOPS / "common.py"):
            shutil.copy(beside, target.parent)
    program, command_name, *words = shlex.split(command.text)
    assert (program, command_name) == (".venv/bin/launch", "local")
    environment = os.environ | {
        "PYTHONPATH": str(pages.ROOT),
        "HF_HUB_OFFLINE": "1",
        "YOLO_CONFIG_DIR": str(tmp_path / "settings"),
        "ROOFLAUNCH_ITERATIONS": "3",
        "ROOFLAUNCH_WARMUP": "1",
        "ROOFLAUNCH_CEILINGS": "0",
    }
    line = [sys.executable, "-m", "launcher", "local", "--cpu", *words, *case.more]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = f"{command.where}\n{done.stdout}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, said
    assert f"\n  a step        {case.step}" in done.stdout, said
