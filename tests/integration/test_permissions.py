"""The permissions that docs/operations.md lists are enough for each command, and each is needed."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support import credentials
from tests.support.access_control import Permission, allow, revoke
from tests.support.commands import CommandLine
from tests.support.corpora import documents
from tests.support.oracle import assert_undisturbed
from tests.support.paths import ROOT
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def names(stage: Stage) -> dict[str, list[tuple[str, str]]]:
    """Return the resources of a stage, by their names in the table."""
    topics = stage.topics
    outputs = [topics[role] for role in ("clean", "duplicates", "dead_letter")]
    is_split = stage.mode == "split"
    of_topics = {
        "source topic": [topics["source"]],
        "clean topic": [topics["clean"]],
        "dead-letter topic": [topics["dead_letter"]],
        "changelog topic": [topics["changelog"]],
        "clean, duplicates and dead-letter topic": outputs,
        "sketches topic": [topics["sketches"]] if is_split else [],
        "verdicts topic": [topics["verdicts"]] if is_split else [],
        "all topics": [*topics.values()],
    }
    return {
        **{name: [("topic", one) for one in found] for name, found in of_topics.items()},
        "group `kafka.group_id`": [("group", stage.name)],
        "group `<clean topic>-claims`": [("group", f"{topics['clean']}-claims")],
        "group `<changelog topic>-election`": [("group", f"{topics['changelog']}-election")],
        "transactional id: the changelog topic's name": [("transactional id", topics["changelog"])],
        "transactional ids `<changelog topic>-edge-<partition>`": [
            ("transactional id", f"{topics['changelog']}-edge-0")
        ]
        if is_split
        else [],
    }


def table(stage: Stage) -> dict[str, set[Permission]]:
    """Return the permissions that the table lists, by command."""
    (section,) = re.findall(r"^### Permissions\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)[1:]
    resources = names(stage)
    listed: dict[str, set[Permission]] = {}
    for resource, operations, commands in rows:
        for command in re.findall(r"`([^`]+)`", commands):
            listed.setdefault(command, set()).update(
                Permission(kind, name, operation)
                for kind, name in resources[resource]
                for operation in operations.split(", ")
            )
    return {command: {one for one in of if not implied(one, of)} for command, of in listed.items()}


def implied(permission: Permission, others: set[Permission]) -> bool:
    """Tell whether others include a permission: Read and Write include Describe."""
    return permission.operation == "Describe" and any(
        permission._replace(operation=operation) in others for operation in ("Read", "Write")
    )


@dataclass
class Guarded:
    """A stage whose commands log in as the user without permissions of its own."""

    broker: Broker
    stage: Stage
    user: str

    def permit(self, permissions: set[Permission]) -> None:
        """Give the user these permissions."""
        asyncio.run(allow(self.broker, self.user, permissions))

    def withdraw(self, permissions: set[Permission]) -> None:
        """Take them from the user."""
        asyncio.run(revoke(self.broker, self.user, permissions))


@pytest.fixture
def guarded(secured_broker: Broker, tmp_path: Path) -> Guarded:
    """Return a stage with topics and records: 20 documents, and one that no worker accepts."""
    stage = Stage(secured_broker.bootstrap, tmp_path / "stage")
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    stage.produce([Message(b"no JSON")])
    return Guarded(secured_broker, stage, secured_broker.secured.limited_username)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(capfd)


def arguments(stage: Stage, name: str) -> list[object]:
    """Return the arguments of a command of the table."""
    position = f"{stage.topics['source']}:0:9"
    more = {"dlq replay": ["--yes"], "reinstate": ["--yes", position]}
    return [*name.split(), *more.get(name, []), "--config", stage.config]


COMMANDS = ["config check", "dlq list", "dlq replay", "reinstate"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_what_the_table_lists(
    guarded: Guarded, command: CommandLine, name: str
) -> None:
    """It works with all listed permissions, and ends with 6 without any one of them."""
    guarded.stage.run_until_judged(21)
    assert_needed(guarded, command, name)


def test_a_check_of_mode_split_needs_what_the_table_lists(
    secured_broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """It checks the permissions of edges and judges, also for the transactional ids of edges."""
    stage = Stage(secured_broker.bootstrap, tmp_path / "stage", mode="split")
    stage.create_topics()
    guarded = Guarded(secured_broker, stage, secured_broker.secured.limited_username)
    assert_needed(guarded, command, "config check")


def assert_needed(guarded: Guarded, command: CommandLine, name: str) -> None:
    """Run a command with all its listed permissions, and without each of them."""
    stage = guarded.stage
    stage.configure(**credentials.limited(guarded.broker), standby={"enabled": True})
    listed = table(stage)[name]
    guarded.permit(listed)

    def ends_with(code: int) -> bool:
        ended, output, errors = command.run(*arguments(stage, name))
        assert "Traceback" not in output + errors
        return ended == code

    wait_until(lambda: ends_with(0), f"{name} to work with all permissions")
    for one in sorted(listed):
        guarded.withdraw({one})
        wait_until(lambda: ends_with(6), f"{name} to need {one}", patience_s=10)
        guarded.permit({one})
        wait_until(lambda: ends_with(0), f"{name} to work again", patience_s=10)


@pytest.mark.parametrize("mode", ["single", "split"])
def test_creating_topics_needs_what_the_table_lists(
    secured_broker: Broker, tmp_path: Path, command: CommandLine, mode: str
) -> None:
    """With the listed permissions it creates all topics; without any one of them it ends with 6."""
    user = secured_broker.secured.limited_username

    def run(number: int, code: int) -> None:
        """Run on new names, without the permission of this number."""
        stage = Stage(secured_broker.bootstrap, tmp_path / str(number), mode=mode)
        stage.configure(**credentials.limited(secured_broker))
        listed = sorted(table(stage)["topics create"])
        asyncio.run(allow(secured_broker, user, listed[:number] + listed[number + 1 :]))
        # The broker may take a moment to apply the entries.
        wait_until(
            lambda: command.run(*arguments(stage, "topics create"))[0] == code,
            f"the end with {code}, without permission {number} of {listed}",
            patience_s=10,
        )

    any_stage = Stage(secured_broker.bootstrap, tmp_path / "stage", mode=mode)
    count = len(table(any_stage)["topics create"])
    for number in range(count):
        run(number, 6)
    run(count, 0)


def test_a_worker_needs_what_the_table_lists(secured_broker: Broker, tmp_path: Path) -> None:
    """With all listed permissions it judges; without any one of them it ends with 6.

    Only a worker that stands by needs the group of the election.
    """
    standby = {"enabled": True}
    user = secured_broker.secured.limited_username
    complete = Stage(secured_broker.bootstrap, tmp_path / "complete")
    complete.create_topics()
    complete.produce_json(documents(0, 20))
    asyncio.run(allow(secured_broker, user, table(complete)["run"]))
    complete.configure(**credentials.limited(secured_broker), standby=standby)
    complete.run_until_judged(20)
    assert_undisturbed(complete)
    for number in range(len(table(complete)["run"])):
        stage = Stage(secured_broker.bootstrap, tmp_path / str(number))
        stage.create_topics()
        stage.configure(**credentials.limited(secured_broker), standby=standby)
        listed = sorted(table(stage)["run"])
        asyncio.run(allow(secured_broker, user, {*listed} - {listed[number]}))
        with stage.start_worker() as worker:
            assert worker.wait() == 6, f"not needed: {listed[number]}"
            assert worker.complaint().startswith("streamdedup: ")


@pytest.mark.parametrize(("role", "other"), [("edge", "judge"), ("judge", "edge")])
def test_a_role_needs_what_the_table_lists(
    secured_broker: Broker, tmp_path: Path, role: str, other: str
) -> None:
    """With all listed permissions it does its part; without any one of them it ends with 6.

    The other role may do everything.
    """
    standby = {"enabled": True}
    user = secured_broker.secured.limited_username
    command = f"run --role {role}"
    complete = Stage(secured_broker.bootstrap, tmp_path / "complete", mode="split")
    complete.create_topics()
    complete.produce_json(documents(0, 20))
    limited = complete.variant("limited", **credentials.limited(secured_broker), standby=standby)
    asyncio.run(allow(secured_broker, user, table(complete)[command]))
    with (
        complete.start_worker("--role", other) as free,
        limited.start_worker("--role", role) as worker,
    ):
        complete.wait_for(20, worker)
        free.assert_running()
        worker.assert_running()
    assert_undisturbed(complete)
    for number in range(len(table(complete)[command])):
        stage = Stage(secured_broker.bootstrap, tmp_path / str(number), mode="split")
        stage.create_topics()
        stage.produce_json(documents(0, 20))
        stage.configure(**credentials.limited(secured_broker), standby=standby)
        listed = sorted(table(stage)[command])
        asyncio.run(allow(secured_broker, user, {*listed} - {listed[number]}))
        with stage.start_worker("--role", role) as worker:
            assert worker.wait() == 6, f"not needed: {listed[number]}"
            assert worker.complaint().startswith("streamdedup: ")


CHANGES = {
    "write to duplicates": ("topic", "duplicates", "Write"),
    "write to dead letters": ("topic", "dead_letter", "Write"),
    "write to the changelog": ("topic", "changelog", "Write"),
    "read the source": ("topic", "source", "Read"),
    "transactional id": ("transactional id", "changelog", "Write"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_permission_that_is_withdrawn_while_a_worker_runs(guarded: Guarded, name: str) -> None:
    """The worker ends with 6 and one line, or waits; with the permission it judges the rest."""
    stage = guarded.stage
    guarded.permit(table(stage)["run"])
    stage.configure(**credentials.limited(guarded.broker))
    kind, role, operation = CHANGES[name]
    permission = Permission(kind, stage.topics[role], operation)
    with stage.start_worker() as worker:
        stage.wait_for(21, worker)
        guarded.withdraw({permission})
        stage.produce_json(documents(20, 40))
        stage.produce([Message(b"no JSON either")])
        worker.assert_ends(6, permission.name)
    assert len(stage.outcomes()) < 42
    guarded.permit({permission})
    stage.run_until_judged(42)
    assert len(stage.outcomes()) == 42


@pytest.mark.parametrize("role", ["duplicates", "dead_letter", "clean"])
def test_an_output_topic_that_is_deleted_while_a_worker_runs(
    broker: Broker, tmp_path: Path, role: str
) -> None:
    """The worker commits nothing without it, and ends with 5; with a new topic it judges the rest.

    The outcomes in the deleted topic are gone with it.
    """
    stage = Stage(broker.bootstrap, tmp_path / "stage")
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    with stage.start_worker() as worker:
        stage.wait_for(20, worker)
        stage.delete_topic(role)
        stage.produce([Message(b"no JSON")])
        stage.produce_json(documents(20, 40))
        worker.assert_ends(5, stage.topics[role])
    stage.create_topics()
    stage.run_until_committed({0: 41})
    expected = {"clean": 18, "duplicates": 2, "dead_letter": 1}
    later = [where for (_, offset), where in stage.outcomes().items() if offset >= 20]
    assert {where: later.count(where) for where in expected} == expected
