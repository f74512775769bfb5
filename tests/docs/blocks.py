"""*Blocking.* The fenced blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "helm" / "streamdedup" / "README.md"]
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "internals").glob("*.md"))
"""The pages with instructions; decisions in docs/adr are history."""

PROGRAMS = ("curl", "docker", "helm", "kubectl", "make", "pip", "python", "streamdedup", "uv")
"""Programs that instructions start; Kafka's own begin with ``kafka-``."""

_SHELLS = {"sh", "bash", "shell", "console"}
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_HEREDOC = re.compile(r"<<'?(\w+)'?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: path of the page, from the root of the repository.
        language: the word behind the fence.
        content: the lines between the fences.
    """

    page: str
    language: str
    content: str

    def commands(self) -> list[str]:
        """Return the commands of a shell block, without prompts, comments and documents."""
        if self.language not in _SHELLS:
            return []
        content = self.content.replace("\\\n", " ").replace(" && ", "\n")
        lines = iter(content.splitlines())
        commands = []
        for line in lines:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            if words:
                commands.append(shlex.join(words))
            if document := _HEREDOC.search(line):
                while next(lines) != document[1]:
                    pass
        return commands


def blocks() -> list[Block]:
    """Return the blocks of all pages, in order."""
    return [
        Block(_name(page), language.strip(), content)
        for page in PAGES
        for _, language, content in _FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def inline_commands() -> list[tuple[str, str]]:
    """Return page and text of each inline code that starts with a program or a command of ours."""
    return [
        (_name(page), " ".join(code.split()))
        for page in PAGES
        for code in _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    ]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))
