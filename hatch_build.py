"""Hatchling's hooks: the commit of a wheel or sdist, as `workload/commit.txt`, and README for a package index.

A checkout asks git instead, so an editable installation gets none. `-dirty` follows the commit where a packaged file
was changed after it; an archive without git and without the file says nothing, and no commit is made up.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NAME = "workload/commit.txt"
PACKAGED = ("launcher", "rooflaunch", "workload", "analysis", "docker")


class ReadmeHook(MetadataHookInterface):
    """Makes the package's description from README.md: a package index has none of the files that README links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`, with links to the repository."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        text = re.sub(r"(!\[[^]]*\]\(|(?:src|srcset)=\")(?=docs/)", rf"\g<1>{repository}/raw/main/", text)
        text = re.sub(r"\]\((?=[\w./-]+\.md)", f"]({repository}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file; `hatchling` runs it once per archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the commit beside the build's other temporary files and include it."""
        if version == "editable":
            return
        kept = Path(self.root, NAME)
        if kept.is_file():
            # An sdist has the file. Included in the same way, it has the same place in the wheel as from a checkout.
            build_data["force_include"][str(kept)] = NAME
        elif commit := commit_of(Path(self.root)):
            written = Path(self.directory) / "commit.txt"
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(written)] = NAME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Leave nothing beside the archive."""
        Path(self.directory, "commit.txt").unlink(missing_ok=True)


def commit_of(root: Path) -> str:
    """The checkout's commit, `-dirty` where a packaged file differs from it; empty outside a checkout."""
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", *PACKAGED)
    return f"{commit}-dirty" if commit and changed else commit


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
