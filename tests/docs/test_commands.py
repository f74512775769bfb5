"""Every command, setting and example of the documentation is run, or checked and listed here."""

from __future__ import annotations

import gzip
import json
import random
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
import yaml

from deploy.broker.broker import Broker
from deploy.registry import SchemaRegistry
from streamdedup import Deduplicator
from streamdedup.cli import main
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.docs.blocks import PROGRAMS, Block, blocks, inline_commands
from tests.support.browser.samples import article, stream
from tests.support.commands import CommandLine
from tests.support.paths import ROOT
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

NOT_RUN = {
    "git clone https://github.com/streamdedup/streamdedup": "needs the network",
    "cd streamdedup": "follows git clone",
    "python3 -m venv .venv": ".ci/package installs into a new environment",
    ". .venv/bin/activate": "follows python3 -m venv",
    "pip install .": ".ci/package installs the wheel",
    "hf download ORGANISATION/DATASET --repo-type dataset --include '*.parquet' "
    "--local-dir crawl": "needs the network",
    "kcat -C -b 127.0.0.1:9092 -t documents-duplicates -o beginning -e "
    "-X isolation.level=read_committed": "needs kcat",
    "make demo": "creates an environment; .ci/run runs it",
    "make demo-kafka": "creates an environment; .ci/run runs it",
    "make test": "runs this test",
    "docker compose -f deploy/compose.yaml up --build": "needs a Docker engine; .ci/image runs it",
    "docker build -f deploy/Dockerfile -t registry.example/streamdedup:0.1.0 .": "needs a Docker "
    "engine; .ci/image builds the image",
    "docker push registry.example/streamdedup:0.1.0": "needs a registry",
    "helm install dedup helm/streamdedup --values values.yaml": "needs a cluster; .ci/chart "
    "renders the chart",
    "helm test dedup --logs": "needs a cluster; .ci/chart renders the test",
    "kubectl exec dedup-streamdedup-0 -- streamdedup config check --config "
    "/etc/streamdedup/settings/streamdedup.yaml": "needs a cluster; .ci/chart checks the path",
}
"""Commands that no test can run, with the reason. A command that is neither here nor one of
streamdedup's fails."""

RUN_ELSEWHERE = {
    ("docs/backfill.md", "sh"): 3,
    ("docs/quickstart.md", "sh"): 3,
    ("docs/quickstart.md", "python"): 2,
    ("README.md", "sh"): 1,
    ("README.md", "python"): 1,
}
"""How many blocks other tests run: tests/spark/test_on_docs.py those of docs/backfill.md, and
test_readme.py the others, whose output it compares with what the page shows."""

BLOCKS = blocks()
ON_KAFKA = ("run", "topics", "config", "dlq", "reinstate", "index")
"""Commands that are run with a broker; the others are run on files."""


def commands(*, on_kafka: bool) -> list[tuple[str, str]]:
    """Return page and text of streamdedup's commands in blocks that this module runs."""
    return [
        (block.page, command)
        for block in BLOCKS
        if (block.page, block.language) not in RUN_ELSEWHERE
        for command in block.commands()
        if command.startswith("streamdedup ")
        and (command.split()[1] in ON_KAFKA or "--config" in command) == on_kafka
    ]


def test_every_command_is_run_or_listed() -> None:
    """A new command of another program must be listed with a reason, and an old one removed."""
    found = {
        command
        for block in BLOCKS
        if (block.page, block.language) not in RUN_ELSEWHERE
        for command in block.commands()
    }
    assert {one for one in found if not one.startswith("streamdedup ")} == NOT_RUN.keys()
    counts = Counter((block.page, block.language) for block in BLOCKS)
    assert {place: counts[place] for place in RUN_ELSEWHERE} == RUN_ELSEWHERE


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page} {block.language}")
def test_blocks_have_a_language_that_is_checked(block: Block) -> None:
    """A block without a language is output or a drawing, and has no command."""
    assert block.language in {"", "sh", "console", "python", "yaml", "json"}
    if not block.language:
        starts = [line.removeprefix("$ ").split(" ")[0] for line in block.content.splitlines()]
        assert not {one for one in starts if one in PROGRAMS or one.startswith("kafka-")}


def test_files_and_targets_of_listed_commands_exist() -> None:
    """Files of this repository and targets of the Makefile that commands name exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    every = [*NOT_RUN, *(text for _, text in inline_commands())]
    targets = {match[1] for text in every if (match := re.match(r"make ([a-z-]+)", text))}
    assert len(targets) > 10
    assert targets <= known
    words = [word for command in NOT_RUN for word in shlex.split(command)]
    paths = {word for word in words if word.startswith(("deploy/", "helm/"))}
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_extras_exist() -> None:
    """`pip install '.[NAME]'` names an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra
        for _, text in inline_commands()
        for extras in re.findall(r"install '(?:\.|streamdedup)\[([\w,]+)\]", text)
        for extra in extras.split(",")
    }
    assert {"arrow", "registry"} <= named <= project["optional-dependencies"].keys()


def unknown_words(text: str) -> list[str]:
    """Return the words of a command of streamdedup that are neither a command nor an option."""
    command: Any = typer.main.get_command(main.app)
    unknown = []
    words = shlex.split(text)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"--help", "-h", "--install-completion", "--show-completion"}
    for word in words:
        option = word.split("=")[0]
        if option.startswith("-") and option != "-" and option not in known:
            unknown.append(option)
    return unknown


def test_inline_commands_have_known_options() -> None:
    """Code within a sentence, such as `evaluate --profile news`, names commands and options."""
    application: Any = typer.main.get_command(main.app)
    checked = 0
    wrong = []
    for page, text in inline_commands():
        bare = text.removeprefix("streamdedup ").removesuffix(" ...")
        first = bare.split(" ")[0]
        is_ours = text.startswith("streamdedup ") or (
            first in application.commands and " --" in bare
        )
        if is_ours and re.fullmatch(r"[a-z][-\w./:=,'\" ]*", bare, re.IGNORECASE):
            checked += 1
            wrong += [f"{page}: {text}: {word}" for word in unknown_words(bare)]
    assert wrong == []
    assert checked > 15


@pytest.mark.parametrize("text", ["evaluate --no-such", "topics destroy", "nothing", "dlq list -z"])
def test_unknown_words_are_found(text: str) -> None:
    """An unknown command or option is reported."""
    assert unknown_words(text)


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "yaml"],
    ids=lambda block: block.page,
)
def test_settings_load(block: Block, tmp_path: Path) -> None:
    """A block of YAML is a valid settings file, or values of the chart with valid settings."""
    content = yaml.safe_load(block.content)
    values = yaml.safe_load((ROOT / "helm/streamdedup/values.yaml").read_text(encoding="utf-8"))
    sections = Settings.model_fields.keys()
    if not content.keys() <= sections:
        assert content.keys() <= values.keys()
        if "sasl" in content.get("credentials", {}):
            # The chart mounts the password of the secret, and adds its path.
            (tmp_path / "password").write_text("secret")
            security = content["config"]["kafka"]["security"]
            security["sasl_password_file"] = str(tmp_path / "password")
        content = content.get("config", {})
    path = tmp_path / "streamdedup.yaml"
    path.write_text(yaml.safe_dump(content))
    load_settings(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the input files that the pages name."""
    monkeypatch.chdir(tmp_path)
    lines = [
        json.dumps(one | {"title": one["text"][:40], "abstract": one["text"], "cluster": row % 9})
        for row, one in enumerate(stream(60))
    ]
    lines = [line.replace('"cluster"', '"group": 1, "cluster"') for line in lines]
    content = "\n".join(lines).encode()
    for name in ("posts", "monday"):
        Path(f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("posts", "crawl"):
        Path(name).mkdir()
        table = pa.table(
            {"id": [str(row) for row in range(60)], "body": [one["text"] for one in stream(60)]}
        )
        table = table.append_column("text", table["body"])
        for part in range(2):
            pq.write_table(table[part * 30 : part * 30 + 30], f"{name}/{part}.parquet")
    for name in ("corpus", "news", "ads", "pages", "newscopy", "core"):
        Path(f"{name}.jsonl").write_bytes(content)
    tweets = [
        json.dumps({"id_str": str(row), "full_text": one["text"]})
        for row, one in enumerate(stream(60))
    ]
    Path("tweets.jsonl").write_text("\n".join(tweets))
    for name in ("shards", "first"):
        Path(name).mkdir()
    Path("shards/7.jsonl.gz").write_bytes(gzip.compress(content))
    Path("first/6.jsonl").write_bytes(content)
    for name in ("ada", "ben"):
        labels = [
            {"id": str(row), "original_id": "o", "estimate": row / 40, "label": "same"}
            | ({"label": "different"} if row < 28 else {})
            for row in range(41)
        ]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, labels)))
    return tmp_path


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(capfd)


@pytest.mark.parametrize(("page", "text"), commands(on_kafka=False))
@pytest.mark.usefixtures("folder")
def test_commands_on_files(page: str, text: str, command: CommandLine) -> None:
    """The command ends with exit code 0, and writes the files that it names."""
    words = shlex.split(text)[1:]
    code, _, errors = command.run(*words)
    assert code == 0, f"{page}: {errors}"
    for option, value in pairwise(words):
        if option in {"--html", "--plot", "--kept", "--duplicates", "--index"}:
            assert Path(value).exists(), option


def embedded_examples() -> list[Block]:
    """Return the examples for Python: a table, batches of columns, and a job."""
    return [
        one for one in BLOCKS if (one.page, one.language) == ("docs/files-and-python.md", "python")
    ]


@pytest.mark.usefixtures("folder")
def test_python_example_with_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    """It prints what the page shows."""
    exec(embedded_examples()[0].content, {})  # noqa: S102 - an example of this repository
    assert capfd.readouterr().out == "2 [None, None, 'python:0:0']\n"


@pytest.mark.usefixtures("folder")
def test_python_example_with_batches_of_columns() -> None:
    """It filters batches with a function that takes columns and returns what to keep."""

    class Batches:
        def filter(self, function: Any, *, batched: bool) -> list[str]:
            assert batched
            pages = [
                ["Rain is coming soon", "Sun at noon"],
                ["Rain is coming soon", "Snow tonight"],
            ]
            return [
                text
                for page in pages
                for text, keep in zip(page, function({"text": page}), strict=True)
                if keep
            ]

    names: dict[str, Any] = {"Deduplicator": Deduplicator, "dataset": Batches()}
    exec(embedded_examples()[1].content, names)  # noqa: S102 - an example of this repository
    assert names["kept"] == ["Rain is coming soon", "Sun at noon", "Snow tonight"]


def test_python_example_of_a_job(folder: Path) -> None:
    """The example judges a file, and prints its progress and its result."""
    (folder / "example.py").write_text(embedded_examples()[2].content)
    run = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    *progress, result = run.stdout.splitlines()
    assert [line.partition("(")[0] for line in progress] == ["RunTally"]
    assert re.fullmatch(r"\d+ kept, \d+ duplicates", result)
    kept = len((folder / "kept.jsonl").read_bytes().splitlines())
    assert result == f"{kept} kept, {60 - kept} duplicates"


def test_airflow_task(folder: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command runs for each day, in the same index; Airflow itself is replaced."""
    operator = ModuleType("airflow.providers.standard.operators.bash")
    operator.BashOperator = lambda **arguments: arguments  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, operator.__name__, operator)
    (block,) = [one for one in BLOCKS if (one.page, one.language) == ("docs/recipes.md", "python")]
    names: dict[str, Any] = {}
    exec(block.content, names)  # noqa: S102 - an example of this repository
    counts = []
    for day in ("monday", "posts"):
        text = names["dedup"]["bash_command"].replace("{{ ds }}", day)
        code, _, errors = command.run(*shlex.split(text)[1:])
        assert code == 0, errors
        counts.append((folder / f"kept-{day}.jsonl").read_text().count("\n"))
    assert counts[0] > 0
    assert counts[1] == 0


def test_every_python_block_is_run() -> None:
    """A new example needs a test of its own."""
    pages = [block.page for block in BLOCKS if block.language == "python"]
    assert sorted(pages) == [
        "README.md",
        *["docs/files-and-python.md"] * 3,
        *["docs/quickstart.md"] * 2,
        "docs/recipes.md",
    ]


class Operator:
    """Types the commands of a page against a stage: names and paths are those of the stage."""

    def __init__(self, stage: Stage, command: CommandLine, resources: ExitStack) -> None:
        self._stage = stage
        self._command = command
        self._resources = resources
        self._workers: list[WorkerProcess] = []

    def type(self, text: str) -> None:
        """Run a command; a worker is started, and stopped before a command that needs its index."""
        words = [self._named(word) for word in shlex.split(text)[1:]]
        if "--role" not in words:
            self.stop()
        if words[0] == "run":
            at = words.index("--config")
            flags = words[1:at] + words[at + 2 :]
            worker = self._resources.enter_context(self._stage.start_worker(*flags))
            self._workers.append(worker)
            if "--role" not in words:
                worker.wait_until_ready()
            return
        if words[:2] in (["dlq", "replay"], ["index", "delete"]) or words[0] == "reinstate":
            words.append("--yes")
        code, _, errors = self._command.run(*words)
        assert code == 0, f"{text}: {errors}"

    def stop(self) -> None:
        """Drain the started workers, in reverse order."""
        for worker in self._workers:
            worker.wait_until_ready()
        while self._workers:
            self._workers.pop().drain()

    def _named(self, word: str) -> str:
        if word.endswith("streamdedup.yaml"):
            return str(self._stage.config)
        if word == "/data/index":
            return str(self._stage.index)
        return word.replace("documents:0:4711", f"{self._stage.topics['source']}:0:1")


@pytest.fixture
def corpus(folder: Path) -> Path:
    """Give the corpus the ids that docs/stored-index.md erases."""
    generator = random.Random(8)
    lines = [{"id": f"story-{row}", "text": article(generator, 9)} for row in range(30)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def pages_on_kafka() -> list[Any]:
    """Return the pages with commands for Kafka; starting the roles of mode split takes long."""
    pages = sorted({page for page, _ in commands(on_kafka=True)})
    marks = {"docs/scaling.md": pytest.mark.long}
    return [pytest.param(page, marks=marks.get(page, ())) for page in pages]


@pytest.mark.kafka
@pytest.mark.parametrize("page", pages_on_kafka())
def test_commands_on_kafka(
    page: str,
    broker: Broker,
    corpus: Path,
    command: CommandLine,
    capfd: Any,
    request: pytest.FixtureRequest,
) -> None:
    """The commands of the page run in order, against a real broker."""
    mode = "split" if page == "docs/scaling.md" else "single"
    stage = Stage(broker.bootstrap, corpus, mode=mode)
    if page == "docs/registry.md":
        registry: SchemaRegistry = request.getfixturevalue("registry")
        stage.configure(registry=registry.settings(), output={"duplicates_format": "avro"})
    texts = [text for one, text in commands(on_kafka=True) if one == page]
    if not any(text.startswith("streamdedup topics create") for text in texts):
        stage.create_topics()
        text = article(random.Random(1))
        stage.produce_json([{"id": "a", "text": text}, {"id": "b", "text": text}, {"id": "c"}])
        if page == "docs/operations.md":
            stage.run_until_judged(3)
    with ExitStack() as resources:
        operator = Operator(stage, command, resources)
        for text in texts:
            operator.type(text)
        operator.stop()
    capfd.readouterr()
