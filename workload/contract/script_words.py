"""Command line of the user's own training script, as launcher and trainer read it. Standard library only."""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.text import did_you_mean

# Programs that start a process for each GPU.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun", "srun")
# Placeholder in the script's arguments for the folder of its data.
DATA = "{data}"
DATA_EXAMPLE = "gs://BUCKET/PREFIX (or s3://)"
HIDDEN = "[redacted]"
# Names whose value is a secret, by their last words; --tokenizer, --key-size and a model's --pad_token do not match.
_NAME = (
    r"(?:[\w.-]*[-_.])?(?:secrets?(?:[-_.]value)?|passwords?|passwd|passphrase|pwd|pat|auth|authorization|credentials?"
    r"|(?:api|access|secret|private|account|service|wandb|comet|neptune|hf|openai|azure|aws)[-_.]?key"
    r"|(?<!(?:pad|bos|eos|unk|sep|cls|end|per|num|max|min)[-_.])(?<!(?:mask|stop|next|last|dist)[-_.])"
    r"(?<!(?:image|video|audio|start|class)[-_.])(?<!special[-_.])token)"
)
SECRET = re.compile(rf"[-+~]*{_NAME}", re.IGNORECASE)
# A name and a value inside a word: of an address, of a header, of JSON, or of several settings.
SECRET_PAIR = re.compile(
    rf"(?<![\w.-])((?:{_NAME}|(?<=[?&])[\w-]*sig(?:nature)?)[\"']?\s*[=:]\s*[\"']?)[^&#;,\"'}}\]]+", re.IGNORECASE
)
# Form of keys of Hugging Face, GitHub, GitLab, OpenAI, AWS, Google, Slack and Weights & Biases, and of JSON Web Tokens.
TOKEN = re.compile(
    r"\b(hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|(AKIA|ASIA)\w{12,}"
    r"|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|[0-9a-f]{40}\b|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
MOST_NAME = 40
USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+@")


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments with tokens, passwords and keys replaced by `[redacted]`."""
    safe: list[str] = []
    is_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_secret:
            safe.append(HIDDEN)
        elif equals and SECRET.fullmatch(name):
            safe.append(f"{name}={HIDDEN}")
        else:
            safe.append(TOKEN.sub(HIDDEN, SECRET_PAIR.sub(rf"\1{HIDDEN}", USER_OF_URL.sub(f"{HIDDEN}@", word))))
        is_secret = not is_secret and word.startswith("-") and SECRET.fullmatch(word) is not None
    return tuple(safe)


def without_secrets_in(text: str) -> str:
    """`text` without keys (recognised by their form), user names in URLs and the path of the user's home folder."""
    return without_home(TOKEN.sub(HIDDEN, USER_OF_URL.sub(f"{HIDDEN}@", text)))


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments without secrets and without the path of the user's home folder."""
    return tuple(map(without_home, without_secrets(words)))


def without_home(text: str) -> str:
    """A path or an argument with `~` for the user's home folder, because the folder often has the user's name."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def with_home(word: str) -> str:
    """Inverse of `without_home`, for a path or for an option whose value is a path."""
    return re.sub(r"(^|=)~(?=/|$)", lambda match: match[1] + str(Path.home()), word)


def command_line(words: Sequence[str]) -> str:
    """Script and arguments as one line of a shell, without secrets."""
    return shlex.join(without_secrets(words))


def script_name(words: Sequence[str]) -> str:
    """Name of the script, `train.py`, or of the module."""
    return words[1] if words[0] == "-m" and len(words) > 1 else Path(words[0]).name


def script_words(words: Sequence[str]) -> tuple[str, ...]:
    """First words of a command, which say which script to run: its path, or `-m` and the name of a module."""
    return tuple(words[: 2 if [*words[:1]] == ["-m"] else 1])


def number_of(text: str) -> int | float | None:
    """Value of a word that is a finite number, else None."""
    for kind in (int, float):
        with suppress(ValueError):
            value: int | float = kind(text)
            return value if math.isfinite(value) else None
    return None


def arguments_of(words: Sequence[str]) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Split words into arguments: for each its name as typed, its value, and its words.

    The name is empty for a word that belongs to no option, and the value is None for a flag.
    """
    index = 0
    while index < len(words):
        word, after = words[index], words[index + 1 : index + 2]
        index += 1
        is_option = word.startswith("-") and number_of(word) is None
        name, equals, value = word.partition("=")
        if equals and name:
            yield name, value, [word]
        elif is_option and after and (not after[0].startswith("-") or number_of(after[0]) is not None):
            index += 1
            yield word, after[0], [word, *after]
        else:
            yield (word if is_option else ""), None, [word]


def slug(name: str) -> str:
    """Name of a script in characters that suit a folder's name."""
    kept = "".join(letter if (letter.isalnum() and letter.isascii()) or letter in "._" else "-" for letter in name)
    return kept.strip("-._")[:MOST_NAME] or "script"


def main_file(words: Sequence[str], folder: Path, *, example: str, python: str) -> Path | None:
    """Path of the script, which the first of the `words` after `--` gives relative to `folder`; None for `-m MODULE`.

    `example`: a whole command, for hints; `python`: the interpreter that runs the script, in words. Raises `UsageError`
    if there is no script.
    """
    if not words:
        raise UsageError("no script: write it after --, with its own arguments", hint=example)
    first = words[0]
    name = Path(first).name
    if name in LAUNCHERS:
        raise UsageError(
            f"'{first}' starts a process for each GPU, and rooflaunch measures only processes that it starts itself",
            hint=f"--devices 2 and only the script after --: {example}",
        )
    path = folder / first
    if name.rstrip("0123456789.") == "python" and not path.is_file():
        raise UsageError(f"'{first}' is not needed: the script runs in {python}", hint=example)
    if first == "-m":
        if len(words) == 1:
            start, _, _ = example.partition(" -- ")
            raise UsageError("-m needs the name of a module", hint=f"{start} -- -m package.train")
        return None
    if not path.is_file():
        meant = did_you_mean(name, (other.name for other in path.parent.glob("*.py")), after=" ")
        raise UsageError(
            _why_no_script(first, path), hint=f"{meant}a path relative to {folder}, or -m PACKAGE; {example}"
        )
    if path.suffix == ".ipynb":
        script = shlex.quote(str(Path(first).with_suffix(".py")))
        raise UsageError(
            f"'{first}' is a notebook, not a script",
            hint=f"jupyter nbconvert --to script {shlex.quote(first)}, then run the same with -- {script}",
        )
    return path


def _why_no_script(typed: str, path: Path) -> str:
    if path.is_dir():
        return f"'{typed}' is a folder, not a script"
    return (
        f"'{typed}' looks like an option of rooflaunch, but comes after --"
        if typed.startswith("-")
        else f"no script '{typed}'"
    )
