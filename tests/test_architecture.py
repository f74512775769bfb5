"""Every import of the product keeps the rules of docs/internals/architecture.md."""

from __future__ import annotations

import pytest

from tests.support.architecture import outside, trespasses
from tests.support.paths import ROOT

TABLE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")


def _sources(folder: str) -> dict[str, str]:
    """Return the source of every module of a folder, by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


SOURCES = _sources("streamdedup")
OTHERS = _sources("benchmarks") | _sources("deploy") | _sources("tests")


def test_no_module_breaks_a_rule() -> None:
    """Layers, circles, importers of the clients, pure modules, numba, names, groups, classes."""
    assert trespasses(SOURCES, TABLE) == []


PURE = '"""*Pure.* A module."""\n'
BLOCKING = '"""*Blocking.* A module."""\n'


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        pytest.param(
            "streamdedup.sketch.bands",
            PURE + "from streamdedup.settings.units import Size",
            "streamdedup.sketch.bands:2: imports streamdedup.settings.units, which is not in a",
            id="an import upwards",
        ),
        pytest.param(
            "streamdedup.dedup.resolve",
            PURE + "from streamdedup.formats import outputs",
            "streamdedup.dedup.resolve:2: imports streamdedup.formats.outputs, which is not in a",
            id="an import sideways",
        ),
        pytest.param(
            "streamdedup.sketch.bands",
            PURE + "def late() -> None:\n    import streamdedup.cli.main",
            "streamdedup.sketch.bands:3: imports streamdedup.cli.main, which is not in a lower",
            id="an import upwards inside a function",
        ),
        pytest.param(
            "streamdedup.sketch.shingle",
            PURE + "from streamdedup.sketch import sketcher",
            "circle: streamdedup.sketch.",
            id="a circle inside a room",
        ),
        pytest.param(
            "streamdedup.roles.worker",
            BLOCKING + "from aiokafka import AIOKafkaConsumer",
            "streamdedup.roles.worker:2: imports aiokafka, which only streamdedup.kafka. may",
            id="a second importer of aiokafka",
        ),
        pytest.param(
            "streamdedup.admin.disk",
            BLOCKING + "import lmdb",
            "streamdedup.admin.disk:2: imports lmdb, which only streamdedup.index. may",
            id="a second importer of lmdb",
        ),
        pytest.param(
            "streamdedup.observe.status",
            BLOCKING + "from prometheus_client import Counter",
            "streamdedup.observe.status:2: imports prometheus_client, which only",
            id="a second importer of prometheus_client",
        ),
        pytest.param(
            "streamdedup.sketch.texts",
            PURE + "import time",
            "streamdedup.sketch.texts:2: is pure, and imports time",
            id="a clock in a pure module",
        ),
        pytest.param(
            "streamdedup.sketch.bands",
            PURE + "import numba",
            "numba is reached from settings: streamdedup.settings.",
            id="numba below the settings",
        ),
        pytest.param(
            "streamdedup.sketch.nameless",
            PURE,
            "streamdedup.sketch.nameless: docs/internals/architecture.md does not name it",
            id="a module without a name in the table",
        ),
        pytest.param(
            "streamdedup.utils",
            PURE,
            "streamdedup.utils: not a room",
            id="a module beside the rooms",
        ),
        pytest.param(
            "streamdedup.sketch.bands",
            '"""A module."""',
            "streamdedup.sketch.bands: the docstring does not open with Pure, Blocking or Async",
            id="a module without a colour",
        ),
        pytest.param(
            "streamdedup.sketch.bands",
            PURE + "try:\n    pass\nexcept* OSError as errors:\n    raise ValueError from errors",
            "streamdedup.sketch.bands:5: raises inside of except*",
            id="an error that some releases of Python put into a group",
        ),
        pytest.param(
            "streamdedup.sketch.bands",
            PURE + "class Index:\n    pass",
            "streamdedup.sketch.bands:2: class Index, which streamdedup.index.store defines",
            id="a second class of a name",
        ),
    ],
)
def test_each_kind_of_trespass_is_found(module: str, source: str, problem: str) -> None:
    """Each rule fails when one module is changed to break it."""
    found = trespasses({**SOURCES, module: source}, TABLE)
    assert any(line.startswith(problem) for line in found), found


def test_product_demos_tests_and_benchmarks_are_apart() -> None:
    """Demos need no tests, tests of the product no benchmarks; benchmarks use the test kit."""
    assert outside(SOURCES | OTHERS) == []


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("streamdedup.cli.demo", "deploy.samples"),
        ("streamdedup.cli.demo", "tests.testkit.texts"),
        ("deploy.demo_spark", "benchmarks.archives"),
        ("deploy.demo_spark", "tests.testkit.texts"),
        ("tests.support.stage", "benchmarks.archives"),
        ("tests.testkit.texts", "tests.support.stage"),
        ("tests.testkit.texts", "benchmarks.archives"),
        ("benchmarks.archives", "tests.support.stage"),
    ],
)
def test_a_mixture_is_found(module: str, target: str) -> None:
    """An import inside of a function counts, too."""
    source = f"def late() -> None:\n    import {target}"
    (problem,) = outside({target: "", module: source})
    assert problem.startswith(f"{module}:2: imports {target}, but ")


def test_layers_drawn_otherwise_are_found() -> None:
    """The document shows the layers that the rules enforce."""
    assert "docs/internals/architecture.md does not show these layers" in trespasses({}, "")[0]
