"""Entry point of `analyze`, and the only place that prints an error."""

import sys

from workload.contract import process
from workload.contract.errors import ExitCode, RooflaunchError, ToolError

# Packages that the commands need; a missing one is reported like any other missing tool.
PACKAGES = {"typer", "pandas", "numpy", "pyarrow", "scipy", "google", "altair", "jinja2", "vl_convert"}


def main() -> int:
    """Run `analyze` with the arguments of this process; returns its exit code."""
    return process.enter(_reported)


def _reported() -> int:
    try:
        return _run()
    except RooflaunchError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        missing = ToolError(f"analyze needs the package {package}", hint="pip install 'rooflaunch[analysis]'")
        print(missing.report(), file=sys.stderr)
        return missing.exit_code


def _run() -> int:
    import typer  # noqa: PLC0415 - may be missing

    from analysis.app import app  # noqa: PLC0415
    from workload.contract import program  # noqa: PLC0415

    try:
        code = program.run(app, "analyze")
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    if code == ExitCode.INTERRUPTED:
        # typer returns this code for Ctrl-C without printing anything.
        print("interrupted", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
