"""`launch`: the launcher's door, and the only place that prints an error."""

import sys

from workload.errors import ExitCode, RooflaunchError
from workload.text import printable


def main() -> int:
    """Run `launch` with the arguments of this process; returns its exit code."""
    try:
        import typer  # noqa: PLC0415 - a missing extra is told like any other missing tool

        from launcher.app import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print("error: launch needs the package typer\nhint: pip install 'rooflaunch[launcher]'", file=sys.stderr)
        return ExitCode.TOOL
    try:
        # Not `app()`: it replaces the process's excepthook by one that hides parts of a bug's traceback.
        return int(typer.main.get_command(app).main(prog_name="launch", standalone_mode=False) or 0)
    except RooflaunchError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except typer.TyperException as error:
        print(f"error: {printable(error.format_message())}\nhint: launch --help", file=sys.stderr)
        return ExitCode.USAGE


if __name__ == "__main__":
    sys.exit(main())
