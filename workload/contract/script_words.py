"""Command line of the user's own training script, as launcher and trainer read it. Standard library only."""

import difflib
import itertools
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.text import counted

# Function that returns a whole command, for a hint, with the given words after `--`.
Line = Callable[[Sequence[str]], str]
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


# --- programs that people write before their script


@dataclass(frozen=True, kw_only=True)
class Starter:
    """Program that starts a script, and its options, written with `-` in place of `_`.

    `ignored`: options that change nothing that is measured, each with the value for which this is so; `ANY`, or empty
    for an option without a value. `processes`: option for the number of processes. `instead`: options, and what to type
    for the same effect, with `{value}`, `{python}` and, for our command, `{line}`. `sets_ranks`: whether a single
    process gets the variables of torchrun too.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    processes: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    sets_ranks: bool = False


ANY = "*"
STARTERS: Mapping[tuple[str, ...], Starter] = {
    ("python",): Starter(
        ignored={"-u": "", "-B": ""},
        instead={
            "-O": "PYTHONOPTIMIZE=1 {line}",
            "-W": "PYTHONWARNINGS={value} {line}",
            "-c": "write {value} to a file, code.py, then {line}",
        },
    ),
    ("torchrun",): Starter(
        # rooflaunch chooses a free port itself.
        ignored={"--standalone": "", "--master-addr": ANY, "--master-port": ANY, "--nnodes": "1", "--node-rank": "0"},
        processes="--nproc-per-node",
        sets_ranks=True,
    ),
    ("accelerate", "launch"): Starter(
        ignored={"--multi-gpu": "", "--main-process-port": ANY, "--num-machines": "1", "--mixed-precision": "no"},
        processes="--num-processes",
        instead={
            "--mixed-precision": "ACCELERATE_MIXED_PRECISION={value} {line}",
            "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS={value} {line}",
            "--cpu": "ACCELERATE_USE_CPU=true {line}",
        },
    ),
    ("deepspeed",): Starter(ignored={"--master-port": ANY}, processes="--num-gpus", sets_ranks=True),
    ("uv", "run"): Starter(
        ignored=dict.fromkeys(("-q", "--quiet", "--active", "--frozen", "--locked", "--no-sync", "--offline"), ""),
        instead={"--with": "uv pip install --python {python} {value} && {line}"},
    ),
    **{(name, "run"): Starter() for name in ("hatch", "pdm", "pipenv", "pixi", "poetry", "rye")},
}
# The same programs as modules, after `-m`.
MODULES: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}
# Programs that start processes on one or more machines, with options that rooflaunch does not know.
PARALLEL = ("mpirun", "mpiexec", "horovodrun", "srun")
SHELLS = ("bash", "sh", "zsh", "dash", "fish", "source")
MAKERS = ("make", "gmake", "just")
EXAMPLE = ("train.py", "--lr", "0.1")


def line_of(program: str, command: str) -> Line:
    """Function that returns the command line of this process with other words after `--`, for a hint.

    `program`: in its plain form, as `launch`. Secrets are left out.
    """
    typed = sys.argv[1:]
    is_this = typed[:1] == [command] and "--" in typed
    options = without_secrets(typed[1 : typed.index("--")] if is_this else ())
    return lambda words: f"{program} {shlex.join([command, *options, '--', *without_secrets(words)])}"


def read_typed(
    words: Sequence[str], folder: Path, line: Line, *, devices: str | None = None, is_here: bool = True
) -> tuple[tuple[str, ...], int | None]:
    """Read what was typed after `--`, such as `torchrun --nproc-per-node 2 train.py`.

    Returns the script with its arguments, and the number of processes if it was typed. `line`: the user's command with
    other words after `--`; `devices`: value of `--devices`, if it was typed; `is_here`: whether the script runs on this
    machine. Raises `UsageError` if the programs before the script do what rooflaunch does not; its hint is the command
    that works.
    """
    before, rest = list[str](), list(words)
    started, sets_ranks = None, False
    while True:
        _refuse_variables(rest, line, is_here=is_here)
        name = starter_of(rest, folder)
        if not name:
            break
        starter, length = STARTERS[name], 2 if rest[0] == "-m" else len(name)
        python = Path(rest[0])
        if (
            name == ("python",)
            and len(python.parts) > 1
            and python.parent.resolve() != Path(sys.executable).parent.resolve()
        ):
            raise UsageError(
                f"'{python}' is another Python than that of this command, {sys.executable}, which runs the script",
                hint=line(["python", *rest[1:]]),
            )
        before, rest = [*before, *rest[:length]], rest[length:]
        sets_ranks = sets_ranks or starter.sets_ranks
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module"):
            length, processes = _option(name, before, rest, line)
            before, rest = [*before, *rest[:length]], rest[length:]
            started = processes or started
        if not rest:
            raise UsageError(f"no script after '{shlex.join(before)}'", hint=line([*before, *EXAMPLE]))
        rest[0] = "-m" if rest[0] == "--module" else rest[0]
    if sets_ranks and (started or 1) == 1:
        typed = shlex.join([*before, "-m", "rooflaunch", "script", "--", *without_secrets(rest)])
        raise UsageError(
            f"'{shlex.join(before)}' starts one process, with variables such as RANK, which rooflaunch does not set",
            hint=f"{line(rest)}; for a script that needs these variables: {typed}",
        )
    if started and devices not in (None, str(started)):
        raise UsageError(
            f"--devices {devices} contradicts '{shlex.join(before)}', which starts {counted(started, 'process')}",
            hint=line(rest),
        )
    if is_here and rest and (program := _installed_program(rest[0], folder)):
        rest[0] = program
    return tuple(rest), started


def starter_of(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Key in `STARTERS` of the program that begins `words`; empty for a script of that name, and for other words."""
    if not words or (words[0] == Path(words[0]).name and (folder / words[0]).is_file()):
        return ()
    if words[0] == "-m":
        return MODULES.get(words[1], ()) if len(words) > 1 else ()
    name = Path(words[0]).name.removesuffix(".exe")
    name = "python" if re.fullmatch(r"python[\d.]*", name) else name
    return next((key for key in STARTERS if key == (name, *words[1 : len(key)])), ())


def _refuse_variables(words: Sequence[str], line: Line, *, is_here: bool) -> None:
    """Raise `UsageError` if `words` begin with settings of variables, as in `A=1 python train.py`."""
    rest = list(words[1:] if words[:1] == ["env"] else words)
    settings = [*itertools.takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word), rest)]
    if not settings:
        return
    pairs = [setting.partition("=") for setting in without_secrets(settings)]
    typed = " ".join(f"{name}={shlex.quote(value)}" for name, _, value in pairs)
    names = " ".join(f"--env {name}" for name, _, _ in pairs)
    raise UsageError(
        f"the variables {typed} must stand before our command, not after --",
        hint=f"{typed} {line(rest[len(settings) :])}{'' if is_here else f', with {names} before --'}",
    )


def _option(name: Sequence[str], before: Sequence[str], rest: Sequence[str], line: Line) -> tuple[int, int | None]:
    """Number of words of the option with which `rest` begins, and the number of processes if it gives that.

    `name`: key in `STARTERS`; `before`: the words before the option. Raises `UsageError` for an unknown option, and for
    one that changes what would be measured.
    """
    starter, program = STARTERS[tuple(name)], " ".join(name)
    typed, equals, value = rest[0].partition("=")
    flag = typed.replace("_", "-")
    ignored, instead, length = starter.ignored.get(flag), starter.instead.get(flag, ""), 1
    if not equals and (ignored or flag == starter.processes or "{value}" in instead):
        value, length = " ".join(rest[1:2]), 2
    if flag == "--" or ignored in (value, ANY):
        return length, None
    if flag == starter.processes and value.isdecimal() and int(value):
        return length, int(value)
    if flag == starter.processes:
        hint = line([*before, typed, "2", *rest[length:]])
        raise UsageError(f"{program} {typed} must be a positive integer here; got '{value}'", hint=hint)
    if not instead and not equals and length == 1 and not "".join(rest[1:2]).startswith("-"):
        # It is unknown whether the option has a value. A script's name is none.
        length = 1 if "".join(rest[1:2]).endswith(".py") else 2
    without = line([*before, *(["code.py"] if flag == "-c" else []), *rest[length:]])
    hint = (instead or "{line}").format(value=shlex.quote(value), line=without, python=shlex.quote(sys.executable))
    raise UsageError(f"{program} {typed} is not supported: rooflaunch starts the script itself", hint=hint)


def _installed_program(name: str, folder: Path) -> str:
    """Path of a command that a package has installed into this Python, as `yolo`; empty if there is none."""
    path = Path(sys.executable).parent / name
    if name != path.name or (folder / name).is_file() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return str(path) if file.read(2) == b"#!" else ""


# --- the script's file


def main_file(words: Sequence[str], folder: Path, line: Line) -> Path | None:
    """Path of the script, which the first of the `words` after `--` gives relative to `folder`; None for `-m MODULE`.

    `line`: the user's command with other words after `--`, for hints. Raises `UsageError` if there is no script.
    """
    if not words:
        raise UsageError("no script: write it after --, with its own arguments", hint=line(EXAMPLE))
    first, arguments = words[0], words[1:]
    path = folder / first
    if first == "-m":
        if not arguments:
            raise UsageError("-m needs the name of a module", hint=line(["-m", "package.train"]))
        return None
    if path.is_file() and path.suffix == ".ipynb":
        script = [str(Path(first).with_suffix(".py")), *arguments]
        raise UsageError(
            f"'{first}' is a notebook, not a script",
            hint=f"jupyter nbconvert --to script {shlex.quote(first)}, then {line(script)}",
        )
    if path.is_file() and path.suffix not in (".sh", ".bash"):
        return path
    raise _no_python(words, folder, line) or _no_script(words, folder, line)


def _no_python(words: Sequence[str], folder: Path, line: Line) -> UsageError | None:
    """Error for words that begin with another program than Python, or with an option; None for other words."""
    first, name = words[0], Path(words[0]).name
    script = [*itertools.dropwhile(lambda word: not (word.endswith(".py") and (folder / word).is_file()), words)]
    files = [word for word in words if word.endswith((".sh", ".bash"))]
    if name in (*SHELLS, *MAKERS) or files[:1] == [first]:
        trains = _training_command(folder / files[0]) if files else ()
        shows = f", which {shlex.join([first, '--dry-run', *words[1:]])} shows" if name in MAKERS else ""
        error = f"'{shlex.join(words)}' runs other commands, and rooflaunch measures only Python"
        usual = f"its command that trains{shows}: {line(['SCRIPT.py', 'ARGS'])}"
        return UsageError(error, hint=line(trains) if trains else usual)
    if first.startswith("-"):
        options = shlex.join(without_secrets(words[: len(words) - len(script)]))
        error = f"no script '{first}': it looks like an option of rooflaunch, but comes after --"
        return UsageError(error, hint=f"{options} before --: {line(script or EXAMPLE)}")
    more = ", with --devices N before -- for N processes" if name in PARALLEL else ""
    return UsageError(f"'{first}' is no Python script", hint=f"{line(script)}{more}") if script else None


def _training_command(file: Path) -> Sequence[str]:
    """First command in a shell script that runs a Python file, if it has no variables; else nothing."""
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if any(word.endswith(".py") for word in words):
                return () if re.search(r"[$`|&;<>]", " ".join(words)) else words
    return ()


def _no_script(words: Sequence[str], folder: Path, line: Line) -> UsageError:
    """Error for a first word that is no file; the hint has what may be meant, with the user's arguments."""
    first, arguments = words[0], words[1:]
    path, below = folder / first, Path(first)
    is_folder, is_program = path.is_dir(), first == path.name and not path.suffix
    below = below if is_folder else below.parent
    here = sorted(each.name for each in (folder / below).glob("*.py"))
    meant, more = ["PATH/SCRIPT.py"], ""
    if is_folder and "__main__.py" in here:
        meant = ["-m", ".".join(below.parts)]
    elif "." in first and (folder / f"{first.replace('.', '/')}.py").is_file():
        meant = ["-m", first]
    else:
        usual = ["train.py", "main.py"] if is_folder else [f"{path.name}.py"]
        similar = difflib.get_close_matches(path.name, here, n=1)
        # The words after an unknown program are its own: no script here understands them.
        only = here[:1] if len(here) == 1 and (is_folder or not is_program) else []
        if known := [name for name in usual if name in here] or similar or only:
            meant = [(below / known[0]).as_posix()]
        elif is_program and not is_folder:
            more = f"; a package's command must be in {Path(sys.executable).parent}, and runs only on this machine"
    where = below.as_posix() if below.parts else folder
    found = f"has {', '.join(here[:4])}{', …' if here[4:] else ''}" if here else "has no .py file"
    error = f"'{first}' is a folder, not a script" if is_folder else f"no script '{first}'"
    return UsageError(f"{error}; {where} {found}", hint=f"{line([*meant, *arguments])}{more}")
