"""Keeps our own exceptions out of a script that is measured."""

from collections.abc import Callable

from workload.contract.errors import RooflaunchError


class Guard:
    """Context manager that passes a `RooflaunchError` to `refuse`, and any other exception, a bug, to `failed`."""

    def __init__(self, refuse: Callable[[RooflaunchError], None], failed: Callable[[Exception], None]) -> None:
        self._refuse, self._failed = refuse, failed

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, RooflaunchError):
            self._refuse(error)
            return True
        if not isinstance(error, Exception):
            return False
        self._failed(error)
        return True
