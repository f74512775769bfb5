"""The README is run, not believed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_prints_what_the_readme_says() -> None:
    """The example under "From Python" runs, and its output is the block that follows it."""
    found = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    example, expected = found.groups()
    command = [sys.executable, "-c", example]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == expected


def test_every_file_that_the_readme_links_to_exists() -> None:
    """Relative links lead somewhere."""
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


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
