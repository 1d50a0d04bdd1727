"""On the path of numba-cuda's own tests: what they run in processes of their own runs on the executor as well."""

import foreign.own_tests  # noqa: F401
