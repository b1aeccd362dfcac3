"""Stand-ins for other programs: they accept the commands and options in foreign_tools.toml, and refuse all others."""

import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("foreign_tools.toml").read_text(encoding="utf-8"))
# Name of an image; OWNER/NAME may have no tag.
IMAGE = re.compile(r"[a-z0-9./-]+:[a-z0-9.-]+|[a-z0-9.-]+(?:/[a-z0-9.-]+)+")
# What `output -raw rooflaunch_toml` prints, by folder of infra/.
TOML = {
    "gcp": """[gcp]
bucket = "my-project-rooflaunch"
project = "my-project"
repository = "us-central1-docker.pkg.dev/my-project/rooflaunch/trainer"
service_account = "rooflaunch-vm@my-project.iam.gserviceaccount.com"
""",
    "aws": """[aws]
bucket = "rooflaunch-123456789012-us-east-1"
instance_profile = "rooflaunch-vm"
region = "us-east-1"
repository = "123456789012.dkr.ecr.us-east-1.amazonaws.com/rooflaunch/trainer"
schedule_role = "rooflaunch-schedule"
security_group = "rooflaunch"
""",
}


class RefusedError(Exception):
    """The program would not accept this line; the text says why."""


def check(program: str, words: Sequence[str]) -> None:
    """Raise `RefusedError` unless the table has the command and its options."""
    tool = TOOLS[program]
    plain = [word for word in words if not word.startswith("-")]
    commands: dict[str, list[str]] = tool["commands"]
    paths = [" ".join(plain[:length]) for length in range(min(len(plain), 5), 0, -1)]
    path = next((path for path in paths if path in commands), None)
    if commands and path is None and not (words and words[0] in tool["everywhere"]):
        raise RefusedError(f"{program} {' '.join(plain[:3])}: not in foreign_tools.toml")
    known = [*commands.get(path or "", ()), *tool["everywhere"]]
    names = {option.rstrip("=") for option in known}
    for word in words:
        if word == "--" or (program == "docker" and path == "run" and IMAGE.fullmatch(word)):
            break  # the rest is for what runs inside
        if word.startswith("-") and word.partition("=")[0] not in names:
            raise RefusedError(f"{program}: no option {word.partition('=')[0]}")
    if program == "pip":
        check_pip(words)


def check_pip(words: Sequence[str]) -> None:
    """Raise `RefusedError` for an extra that our package does not have."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = table["project"]["optional-dependencies"]
    for word in words:
        if ours := re.fullmatch(r"(?:rooflaunch|\.)\[(.*)\]", word):
            for extra in ours[1].split(","):
                if extra not in extras:
                    raise RefusedError(f"rooflaunch has no extra {extra}")


def check_terraform(words: Sequence[str], folder: Path) -> None:
    """Raise `RefusedError` for a variable, an output or a resource that the files in `folder` do not define."""
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.tf"))
    variables = [word for flag, word in itertools.pairwise(words) if flag == "-var"]
    outputs = [word for flag, word in itertools.pairwise(words) if flag == "-raw"]
    wanted = [f'variable "{word.partition("=")[0]}"' for word in variables] + [f'output "{word}"' for word in outputs]
    wanted += ['resource "{}" "{}"'.format(*word.split(".")) for word in words if word.startswith("google_")]
    for definition in wanted:
        if definition not in text:
            raise RefusedError(f"{folder} has no {definition}")


def main(program: str, words: Sequence[str]) -> int:
    """Stand in for `program` on PATH: exit with 2 for a command that it would refuse, else print its result."""
    try:
        check(program, words)
        if program == "terraform":
            [folder] = [word.partition("=")[2] for word in words if word.startswith("-chdir=")]
            check_terraform(words, Path(folder))
    except RefusedError as error:
        print(f"stand-in for {program}: {error}", file=sys.stderr)
        return 2
    print(f"stand-in for {shlex.join([program, *words])}", file=sys.stderr)
    if program == "terraform" and "-raw" in words:
        print(TOML[Path(folder).name], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
