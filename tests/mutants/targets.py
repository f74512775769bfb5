"""*Blocking.* What is mutated, and which tests must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.worker import WARNINGS

_WITH_KAFKA = "not faults and not compiled"
_WITHOUT = f"{_WITH_KAFKA} and not kafka and not long"

_CACHED = "memory.py"
"""Not mutated: numba's cache has kernels with the unchanged code."""
_INDEX_TESTS = tuple(
    f"tests/index/test_{name}.py"
    for name in (
        "blocks",
        "check",
        "check_segments",
        "delta",
        "erasures",
        "expiry",
        "filter",
        "header",
        "layers",
        "mapped",
        "page_cache",
        "postings",
        "rows",
        "sources",
        "store",
        "texts",
        "upkeep",
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """A folder of the package.

    Attributes:
        folder: its name.
        tests: folders and files of tests.
        pure: whether only its *Pure* modules are mutated.
        compiled: whether kernels are compiled; a mutant of a kernel takes seconds more.
        needs_kafka: whether the tests need a broker.
    """

    folder: str
    tests: tuple[str, ...]
    pure: bool = False
    compiled: bool = False
    needs_kafka: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the tests."""
        return {"STREAMDEDUP_TEST_QUICK": "1", "NUMBA_DISABLE_JIT": str(int(not self.compiled))}

    @property
    def options(self) -> list[str]:
        """Arguments of pytest."""
        marks = _WITH_KAFKA if self.needs_kafka else _WITHOUT
        return [*self.tests, "-m", marks, *WARNINGS]

    def modules(self) -> list[Path]:
        """Return the modules to mutate, below the current folder."""
        found = sorted(Path("streamdedup", self.folder).glob("*.py"))
        return [
            path
            for path in found
            if path.stat().st_size
            and path.name != _CACHED
            and (not self.pure or path.read_text().startswith('"""*Pure.*'))
        ]


TARGETS = (
    # Verdicts have plain kernels in its tests; see tests/dedup/conftest.py.
    Target("dedup", ("tests/dedup",), compiled=True),
    Target("formats", ("tests/formats",)),
    Target("settings", ("tests/settings", "tests/cli/test_config.py")),
    Target("files", ("tests/files", "tests/cli/test_index_kept_sketches.py"), compiled=True),
    Target(
        "admin",
        (
            "tests/admin",
            "tests/cli/test_index.py",
            "tests/integration/test_config_check.py",
            "tests/integration/test_corrections.py",
            "tests/integration/test_index_admin.py",
            "tests/integration/test_registry.py",
        ),
        compiled=True,
        needs_kafka=True,
    ),
    Target("kafka", ("tests/kafka",), pure=True),
    Target("index", _INDEX_TESTS, pure=True, compiled=True),
)
