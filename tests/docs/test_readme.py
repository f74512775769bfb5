"""The README and the quick start are run, not believed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return language and content of the blocks below a heading of the quick start."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", QUICK_START, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command that must succeed, with our own `streamdedup` first, and return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_python_example_prints_what_the_readme_says() -> None:
    """The example under "From Python" runs, and its output is the block that follows it."""
    found = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    example, expected = found.groups()
    command = [sys.executable, "-c", example]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == expected


def test_the_quick_start_with_a_file_prints_what_it_says(tmp_path: Path) -> None:
    """The shell example runs, and its output is the block that follows it."""
    (language, example), (_, expected) = blocks("A file")
    assert language == "sh"
    assert run(["bash", "-e", "-c", example], tmp_path) == expected
    assert '"original":"a"' in (tmp_path / "duplicates.jsonl").read_text()


@pytest.mark.kafka
def test_the_quick_start_with_kafka_prints_what_it_says(broker: Broker, tmp_path: Path) -> None:
    """Topics, check, worker, producer and reader: as they stand, but for address and names."""
    name = f"t{uuid.uuid4().hex[:10]}"
    found = [
        (language, block.replace("127.0.0.1:9092", broker.bootstrap).replace("stories", name))
        for language, block in blocks("Your own Kafka")
    ]
    assert [language for language, _ in found] == ["sh", "sh", "python", "python", ""]
    prepare, worker, send, read, expected = (block for _, block in found)
    ours = {
        "STREAMDEDUP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "STREAMDEDUP_KAFKA__GROUP_ID": name,
        "STREAMDEDUP_STATUS__PORT": "0",
    }
    said = run(["bash", "-e", "-c", prepare], tmp_path, **ours)
    assert f"created {name}-changelog, which keeps its records for ever" in said
    # Of the single copies, and of what the tests' own disk may be.
    assert re.search(r"\n[1-3] warnings?\n$", said), said
    command = worker.split()
    assert command[:2] == ["streamdedup", "run"]
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=os.environ | ours,
        stderr=subprocess.DEVNULL,
    )
    try:
        run([sys.executable, "-c", send], tmp_path)
        assert run([sys.executable, "-c", read], tmp_path) == expected
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """Relative links name files that exist, and headings that these have."""
    text = page.read_text(encoding="utf-8")
    for target, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#?)([^)]*)\)", text):
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_compose_and_chart_are_where_the_quick_start_says() -> None:
    """The files of the commands that are not run here exist."""
    named = re.findall(r"-f (\S+)|helm install \S+ (\S+)", QUICK_START)
    paths = {path for pair in named for path in pair if path}
    assert {"deploy/compose.yaml", "deploy/Dockerfile", "helm/streamdedup"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_readme_exists() -> None:
    """The commands that a newcomer types are there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([a-z-]+) +#", README))
    assert {"demo", "demo-kafka", "test"} <= targets
    assert [
        target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ] == []


def test_the_exit_codes_are_documented() -> None:
    """Every class of errors has its code in docs/operations.md."""
    from streamdedup import errors  # noqa: PLC0415 - only this test needs it

    codes = {
        cls.exit_code
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.StreamdedupError)
    }
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", operations, re.MULTILINE)}
    assert codes <= documented
