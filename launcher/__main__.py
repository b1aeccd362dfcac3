"""Entry point of `launch`, and the only place that prints an error."""

import sys

from workload.contract import process
from workload.contract.errors import ExitCode, RooflaunchError, ToolError


def main() -> int:
    """Run `launch` with the arguments of this process; return its exit code."""
    return process.enter(_run)


def _run() -> int:
    try:
        import typer  # noqa: PLC0415 - a missing extra is told like any other missing tool

        from launcher.cli.app import app  # noqa: PLC0415
        from workload.contract import program  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        missing = ToolError("launch needs the package typer", hint="pip install rooflaunch")
        print(missing.report(), file=sys.stderr)
        return missing.exit_code
    try:
        return program.run(app, "launch")
    except RooflaunchError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code
    except typer.Abort:  # typer's word for Ctrl-C
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
