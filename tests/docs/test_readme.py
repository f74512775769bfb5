"""Runs the examples of the README and the quick start, and checks links and tables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from deploy.processes import Child
from streamdedup.kafka.brokers import describe_tested
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return language and content of the blocks below a heading of the quick start."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", QUICK_START, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command that must succeed, with this `streamdedup` in PATH; return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_python_example_of_the_readme() -> None:
    """The example "From Python" prints the block that follows it."""
    match = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", README, re.DOTALL)
    assert match is not None
    example, expected = match.groups()
    command = [sys.executable, "-c", example]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == expected


def test_first_command_of_the_readme(tmp_path: Path) -> None:
    """The command writes the duplicate record that follows it."""
    (example,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    (record,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    assert json.loads(run(["bash", "-e", "-c", example], tmp_path)) == json.loads(record)


def test_quick_start_with_a_file(tmp_path: Path) -> None:
    """The shell example prints the block that follows it."""
    (language, example), (_, expected) = blocks("A file")
    assert language == "sh"
    assert run(["bash", "-e", "-c", example], tmp_path) == expected
    assert '"original":"a"' in (tmp_path / "duplicates.jsonl").read_text()


@pytest.mark.kafka
def test_quick_start_with_kafka(broker: Broker, tmp_path: Path) -> None:
    """Topics, check, worker, producer and reader run; only address and names are replaced."""
    name = f"t{uuid.uuid4().hex[:10]}"
    examples = [
        (language, block.replace("127.0.0.1:9092", broker.bootstrap).replace("stories", name))
        for language, block in blocks("Your own Kafka")
    ]
    assert [language for language, _ in examples] == ["sh", "sh", "python", "python", ""]
    prepare, worker, send, read, expected = (block for _, block in examples)
    settings = {
        "STREAMDEDUP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "STREAMDEDUP_KAFKA__GROUP_ID": name,
        "STREAMDEDUP_STATUS__PORT": "0",
    }
    output = run(["bash", "-e", "-c", prepare], tmp_path, **settings)
    assert f"created {name}-changelog, with unlimited retention" in output
    # Single replicas, and the file system of the tests.
    assert re.search(r"\n[1-3] warnings?\n$", output), output
    command = worker.split()
    assert command[:2] == ["streamdedup", "run"]
    command = [sys.executable, "-m", *command]
    with Child(command, tmp_path / "log", settings, folder=tmp_path) as child:
        run([sys.executable, "-c", send], tmp_path)
        assert run([sys.executable, "-c", read], tmp_path) == expected
        child.process.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """Relative links name existing files and headings."""
    text = page.read_text(encoding="utf-8")
    for target, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#?)([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_of_the_quick_start_exist() -> None:
    """The files of commands that are not run here exist."""
    named = re.findall(r"-f (\S+)|helm install \S+ (\S+)", QUICK_START)
    paths = {path for pair in named for path in pair if path}
    assert {"deploy/compose.yaml", "deploy/Dockerfile", "helm/streamdedup"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_make_targets_of_the_readme_exist() -> None:
    """The first commands that a user types exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([a-z-]+) +#", README))
    assert {"demo", "demo-kafka", "test"} <= targets
    assert [
        target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ] == []


def test_the_supported_releases_of_the_readme_are_those_of_the_matrix() -> None:
    """`make matrix` reads the releases of Python and Kafka from the same two places."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    label = "Programming Language :: Python :: "
    pythons = [name.removeprefix(label) for name in project["classifiers"] if label in name]
    oldest = project["requires-python"].removeprefix(">=")
    assert oldest.rpartition(".")[0] == pythons[0]
    pythons[0] += f" (from {oldest} on)"
    assert f"| Python | {', '.join(pythons)}, on Linux |" in README
    assert f"| Apache Kafka | {describe_tested()} |" in README


def test_exit_codes_are_documented() -> None:
    """The exit code of every error class is in docs/operations.md."""
    from streamdedup import errors  # noqa: PLC0415 - only this test needs it

    codes = {
        cls.exit_code
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.StreamdedupError)
    }
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", operations, re.MULTILINE)}
    assert codes <= documented


def test_the_front_page_of_the_site_lists_every_page() -> None:
    """docs/index.md is the navigation of the site; `make docs` fails on a page that it misses."""
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(([\w/-]+\.md)\)", index, re.MULTILINE)
    pages = {*docs.glob("*.md"), *(docs / "internals").glob("*.md")} - {docs / "index.md"}
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in pages)
