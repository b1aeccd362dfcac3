"""Facts that identify a script, and secrets that are removed from its arguments."""

from pathlib import Path

import pytest

from workload.environment.machine import HostSystem
from workload.steps.program import redacted, script_facts

# what is typed, what the bundle shows
ARGUMENTS = {
    "plain": ("train.py --lr 0.1", "train.py --lr 0.1"),
    "a token": ("train.py --token abc --lr 0.1", "train.py --token [redacted] --lr 0.1"),
    "with =": ("train.py --hub-token=abc", "train.py --hub-token=[redacted]"),
    "Hydra's form": (
        "train.py hf.token=abc +wandb.api_key=abc ++a.password=a=b lr=0.1",
        "train.py hf.token=[redacted] +wandb.api_key=[redacted] ++a.password=[redacted] lr=0.1",
    ),
    "other names": (
        "train.py --passphrase a --pwd a --pat a --wandb.key a --secret_value a -v",
        "train.py --passphrase _ --pwd _ --pat _ --wandb.key _ --secret_value _ -v".replace("_ ", "[redacted] "),
    ),
    "a header": ("train.py --header Authorization:Basic+abc -v", "train.py --header Authorization:[redacted] -v"),
    "settings in one word": ("train.py --set=hf.token=abc,lr=1", "train.py --set=hf.token=[redacted],lr=1"),
    "JSON": ("""train.py {"token":"abc","lr":1}""", """train.py {"token":"[redacted]","lr":1}"""),
    "an address with a token": (
        "train.py https://host/data?access_token=abc&page=2 https://host/data?sv=2&sig=a%3D",
        "train.py https://host/data?access_token=[redacted]&page=2 https://host/data?sv=2&sig=[redacted]",
    ),
    "a token by its look": ("train.py hf_abcdefghijklmnopqrstuvwx", "train.py [redacted]"),
    "inside a word": ("train.py --hub=x:ghp_abcdefghijklmnopqrstuvwx", "train.py --hub=x:[redacted]"),
    "the user's folder": ("train.py --data /home/me/data", "train.py --data ~/data"),
}
NO_SECRETS = """
train.py --tokenizer gpt2 --max-tokens 9 --key-size 3 --keypoints 17 --pad_token 0 --monkey 1 --key jpg --sort-key name
--mask-token 4 --author me --patience 3 --pattern *.jpg --compat 1 --pass 2 token data.key=jpg
model.num_key_value_heads=8 tokenizer.path=a tokens=8 s3://bucket/secret/auth --signature=f8 --config a:b
"""


def test_other_arguments_are_kept() -> None:
    assert redacted(NO_SECRETS.split()) == tuple(NO_SECRETS.split())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_secrets_are_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    typed, shown = ARGUMENTS[name]
    assert " ".join(redacted(typed.split())) == shown


def test_a_header_with_spaces_is_one_word() -> None:
    assert redacted(["a.py", "-H", "Authorization: Bearer abc"]) == ("a.py", "-H", "Authorization: [redacted]")


def facts_of(folder: Path, status: str | None) -> tuple[str | None, bool | None]:
    machine = HostSystem(root=folder, environ={}, tool=lambda *_: status)
    facts = script_facts(["train.py"], folder, folder / "train.py", machine=machine)
    return facts.commit, facts.dirty


@pytest.mark.slow
def test_a_script_is_known_by_its_files_and_commit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    machine = HostSystem(root=tmp_path, environ={}, tool=lambda *_: None)
    first = script_facts(["train.py", "--lr", "1"], tmp_path, tmp_path / "train.py", machine=machine)
    assert (list(first.files or {}), first.command) == (["train.py"], "train.py --lr 1")
    assert "pytest" in (first.packages or {})
    (tmp_path / "train.py").write_text("import torch \n")
    second = script_facts(["train.py", "--lr", "1"], tmp_path, tmp_path / "train.py", machine=machine)
    assert first.sha256 != second.sha256
    commit = "a" * 40
    head = f"# branch.oid {commit}\n# branch.head main\n"
    assert facts_of(tmp_path, None) == (None, None)
    assert facts_of(tmp_path, head) == (commit, False)
    assert facts_of(tmp_path, f"{head}1 .M N... train.py\n") == (commit, True)
