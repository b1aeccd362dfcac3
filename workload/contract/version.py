"""Version of this code, and the commit that a wheel was built from. Standard library only."""

from pathlib import Path

from workload import __version__

__all__ = ["__version__", "packaged_commit"]

# Written into wheels and sdists by hatch_build.py; a checkout has none.
COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"


def packaged_commit() -> str:
    """Commit of an installed wheel, with `-dirty` if files were changed after it; empty if unknown."""
    try:
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
