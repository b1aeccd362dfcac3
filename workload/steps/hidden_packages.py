"""Hides our packages from a script's imports, so that the script gets the user's modules of the same names.

If the user has no module of that name, `import workload` still finds ours. Standard library only.
"""

import importlib.abc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = frozenset({"analysis", "launcher", "workload"})
ROOT = Path(__file__).resolve().parents[2]


class _Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of modules with the names of our packages, active while a script runs.

    `_aside`: modules taken out of `sys.modules`, by name: ours while the finder is active, else the user's.
    """

    def __init__(self) -> None:
        self._aside: dict[str, ModuleType] = {}

    @property
    def is_on(self) -> bool:
        """Whether our packages are hidden."""
        return self in sys.meta_path

    def turn(self) -> None:
        """Hide our packages from imports, or show them again."""
        here = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NAMES}
        sys.modules.update(self._aside)
        self._aside = here
        if self.is_on:
            sys.meta_path.remove(self)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's interface
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec of the user's module, else of our loaded module; None leaves the search to Python's own finders."""
        package, _, rest = fullname.partition(".")
        if package not in NAMES:
            return None
        # Search without our own folder: Python prefers our regular packages to a user's folder without `__init__.py`.
        elsewhere = [entry for entry in sys.path if isinstance(entry, str) and Path(entry).resolve() != ROOT]
        if not rest and (theirs := PathFinder.find_spec(fullname, elsewhere, target)):
            return theirs
        ours = self._aside.get(fullname)
        if ours is None or (rest and sys.modules.get(package) is not self._aside.get(package)):
            return None
        return ModuleSpec(fullname, self, loader_state=ours.__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Our module, which was loaded before the script began."""
        return self._aside[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec. The module was executed when it was first loaded, so nothing else is done."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


_names = _Names()


@contextmanager
def hidden() -> Iterator[None]:
    """Hide our packages from imports until the block ends."""
    _names.turn()
    try:
        yield
    finally:
        _names.turn()


def shown() -> AbstractContextManager[None]:
    """Context manager: show our packages for an import of ours while the script waits."""
    # Turned a second time, the names are shown.
    return hidden() if _names.is_on else nullcontext()
