"""Profiles of hypothesis: `day` draws the same few examples every time, `night` many random ones.

`pytest -m hypothesis --hypothesis-profile=night --timeout=0` runs the night; NIGHT_EXAMPLES sets the examples of each
test. An example that fails at night becomes an `@example` of its test.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_of_loaded_modules = providers._get_local_constants


def _constants() -> Constants:
    """Constants of the loaded modules that examples may hold: none by day, as they depend on the tests run before."""
    return Constants() if settings.default.derandomize else _of_loaded_modules()


providers._get_local_constants = _constants

# Slow is no failure of the code on a busy machine, and tests with `tmp_path` write their files anew for each example.
_ANYWHERE = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("day", _ANYWHERE, derandomize=True, max_examples=20, database=None)
settings.register_profile("night", _ANYWHERE, max_examples=int(os.environ.get("NIGHT_EXAMPLES", "2000")))
settings.load_profile("day")
