"""Entry point of `analyze`, and the only place that prints an error."""

import sys

from workload.contract import entry
from workload.contract.errors import ExitCode, RooflaunchError, ToolError

# Packages that the commands need; a missing one is reported like any other missing tool.
PACKAGES = {"typer", "pandas", "numpy", "pyarrow", "scipy", "google", "altair", "jinja2", "vl_convert"}

# Parts of messages that mean a lack of memory: from the dynamic loader, the system and thread libraries.
NO_MEMORY = (
    "failed to map segment from shared object",
    "annot allocate memory",
    "worker thread: Resource temporarily unavailable",
    "can't start new thread",
)


def main() -> int:
    """Run `analyze` with the arguments of this process; returns its exit code."""
    return entry.enter(_reported)


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
    except Exception as error:
        if not _lacks_memory(error):
            raise
        short = ToolError(
            f"this process cannot get the memory that it needs: {str(error) or type(error).__name__}",
            hint="ulimit -v unlimited, or a machine or a job with more memory",
        )
        print(short.report(), file=sys.stderr)
        return short.exit_code


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or an error that led to it, means a lack of memory: by type `MemoryError` or by message."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


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
