"""Under ``STREAMDEDUP_TEST_QUICK=1`` the kernels of the verdicts run as plain Python.

Their coverage is measured then, and an index beyond the end of an array is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from streamdedup.dedup import judge, resolve, rule, weights
from streamdedup.index import lookup


@pytest.fixture(scope="session", autouse=True)
def plain_kernels() -> Iterator[None]:
    """Replace the kernels by the functions that they are compiled from."""
    if os.environ.get("STREAMDEDUP_TEST_QUICK") != "1":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in (rule, judge):
            for name, kernel in list(vars(module).items()):
                if plain := getattr(kernel, "py_func", None):
                    for user in (rule, judge, resolve, weights, lookup):
                        if getattr(user, name, None) is kernel:
                            patch.setattr(user, name, plain)
        yield
