"""`analyze example`: the report over bundles of our own, which come with the package."""

import shutil
import sys
import tempfile
import webbrowser
from importlib import resources
from pathlib import Path

from analysis.commands import report
from workload.contract.errors import UsageError


def run(*, output: Path, figures: Path | None, markdown_file: Path | None, open_page: bool) -> int:
    """Write the page and print its name; `open_page`: show it in a browser too, where somebody sits at a terminal."""
    with resources.as_file(resources.files("analysis") / "example") as bundles, tempfile.TemporaryDirectory() as folder:
        # A copy: the index of a results folder is written into it, and a package is not ours to write to.
        copy = Path(folder) / "example"
        try:
            shutil.copytree(bundles, copy)
        except FileNotFoundError as error:
            raise UsageError(
                f"the example's bundles are not installed: '{bundles}' does not exist", hint="reinstall rooflaunch"
            ) from error
        code = report.run([copy], output=output, figures=figures, markdown_file=markdown_file, verify=True)
    if open_page and sys.stdout.isatty():
        webbrowser.open(output.resolve().as_uri())
    return code
