"""Builds the site of these pages in build/site, without a network: `make docs`, or `python -m docs.build_site`.

The pages are copied first, because their links must work in the repository too: a link to a file outside of docs/ leads
to the repository on the site, and README.md is the first page.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from docs import commands, run_schema
from workload.contract.record import json_schema

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build/docs"  # docs_dir of mkdocs.yml
SITE = ROOT / "build/site"
# What a page may link beside pages.
ASSETS = ("*.svg", "*.png", "*.json")
# Generated references by the page that ends with them.
REFERENCES = {"commands.md": commands.reference, "bundle.md": run_schema.reference}
# GitHub chooses a picture by the reader's system, the site by its own button: `#only-light`, `#only-dark`.
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"([^>]*)>\s*</picture>')


def staged(text: str, files: str) -> str:
    """Text of a page for the site; `files`: address of the repository's files."""
    text = re.sub(r"(?<=\]\()\.\./", files, text)
    text = PICTURE.sub(r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>', text)
    # GitHub wants every | in a cell with a backslash, which the site would show in code.
    text = re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), text)
    return re.sub(r"(?<=\]\()README\.md", "index.md", text)


def main() -> int:
    """Copy the pages, and build the site; a dead link ends it with its page and line."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for page in sorted((ROOT / "docs").glob("*.md")):
        target = PAGES / ("index.md" if page.name == "README.md" else page.name)
        text = page.read_text(encoding="utf-8")
        if reference := REFERENCES.get(page.name):
            head, _, last = text.rstrip().rpartition("\n\n")
            text = f"{head}\n{reference()}\n{last}\n"
        target.write_text(staged(text, f"{urls['Repository']}/blob/main/"), encoding="utf-8")
    (PAGES / "run.schema.json").write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    for path in (path for kind in ASSETS for path in (ROOT / "docs").rglob(kind)):
        copy = PAGES / path.relative_to(ROOT / "docs")
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0:
        print(f"open {SITE / 'index.html'}; with search: python -m http.server --directory {SITE.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
