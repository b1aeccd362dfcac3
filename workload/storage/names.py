"""Checks that names of objects are safe as names of files, on every file system that may hold them."""

import re
from collections.abc import Callable

from workload.contract.errors import BundleError

# https://cloud.google.com/storage/docs/objects#naming allows 1024 bytes; file systems allow 255 in each part.
MAX_PART_BYTES = 255

UNSAFE: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("an absolute path", lambda name: name.startswith("/")),
    ("a backslash", lambda name: "\\" in name),
    ("a control character", lambda name: re.search(r"[\x00-\x1f\x7f-\x9f]", name)),
    ("a drive letter", lambda name: re.search(r"(^|/)[A-Za-z]:", name)),
    ("leaves its folder", lambda name: ".." in name.split("/")),
    # `rm -rf *` would read such a name as options.
    ("a part that begins with a dash", lambda name: re.search(r"(^|/)-", name)),
    ("an empty part", lambda name: "" in name.split("/")),
    # Windows drops these endings: `MANIFEST.json.` would be the manifest.
    ("a part that ends in a dot or a space", lambda name: re.search(r"[. ](/|$)", name)),
    ("no valid Unicode", lambda name: re.search(r"[\ud800-\udfff]", name)),
    (
        f"a part of more than {MAX_PART_BYTES} bytes",
        lambda name: max(len(part.encode()) for part in name.split("/")) > MAX_PART_BYTES,
    ),
)


def why_unsafe(name: str) -> str:
    """Reason why a file of this name might leave our folder or could not be written; empty if the name is safe."""
    return next((reason for reason, is_unsafe in UNSAFE if is_unsafe(name)), "")


def require_safe(name: str, store: object) -> None:
    """Raise `BundleError` for a name that could not be fetched again."""
    if reason := why_unsafe(name):
        raise BundleError(f"{name!r} is not allowed as a name in {store}: {reason}", hint="give it another name")
