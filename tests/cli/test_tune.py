"""``streamdedup tune`` as it is typed: the table, the warnings and the pictures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from streamdedup.cli import main, options
from streamdedup.errors import InputError, SettingsError
from streamdedup.extras import install
from streamdedup.settings.dedup import DedupSettings


def tune(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main.app, ["tune", *map(str, arguments)], catch_exceptions=True)


def tuned(*arguments: str | Path) -> dict[str, Any]:
    """Run the command, and return its JSON."""
    result = tune("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json() -> None:
    """JSON carries the plan, every option and the pick."""
    found = tuned("--documents", "1000", "--background", "0.1")
    assert found["plan"]["corpus"] == 1000
    assert found["plan"]["background"] == 0.1
    assert found["pick"] in found["options"]
    assert (found["pick"]["bands"], found["pick"]["rows"]) == (9, 4)
    assert found["pick"]["candidate_probability"].keys() == {"0.3", "0.5", "0.6", "0.7"}
    assert found["given"] is None


def test_table_and_curves() -> None:
    """The table, the sentence and a drawing without colour codes are printed."""
    result = tune()
    assert result.exit_code == 0
    assert "pick" in result.stdout
    assert "Pick: 20 bands of 7 rows" in result.stdout
    assert "Jaccard similarity" in result.stdout
    assert "\x1b[" not in result.stdout
    assert max(map(len, result.stdout.splitlines()[:12])) <= 100


def test_stored_texts_are_not_counted(tmp_path: Path) -> None:
    """If texts are stored, a line says that the bytes do not include them."""
    path = tmp_path / "streamdedup.yaml"
    path.write_text("dedup: {verify: exact}\n")
    assert "do not include the texts" in tune("--config", path).stdout
    assert "do not include the texts" not in tune().stdout


def test_swapped_bands_cannot_be_missed() -> None:
    """A warning proposes 450 bands of 20 rows, even beyond num_perm."""
    result = tune("--bands", "20", "--rows", "450")
    assert "the curve is 0 at 0.8" in result.stdout
    assert "did you mean 450 bands of 20 rows" in result.stdout
    assert "need 9000 MinHash values" in result.stdout
    assert len(tuned("--bands", "20", "--rows", "450")["doubts"]) == 3


def test_a_banding_that_the_settings_refuse_is_marked() -> None:
    """Its curve is shown beside the options, in a row that is called refused."""
    shown = tune("--num-perm", "100", "--bands", "200", "--rows", "7").stdout
    assert re.search(r"^ *refused +200 +7 ", shown, re.MULTILINE)
    assert "given" not in shown
    assert "so that the settings refuse them; raise dedup.num_perm" in " ".join(shown.split())


def test_bounds_are_those_of_the_settings() -> None:
    """No command computes what no setting can hold."""
    fields = DedupSettings.model_fields
    bounds = [fields[name].metadata[-1].le for name in ("bands", "rows", "num_perm")]
    assert bounds == [options.MOST_BANDS, options.MOST_ROWS, options.MOST_VALUES]
    assert tune("--bands", "1001", "--rows", "1").exit_code == 2
    error = tune("--bands", "901", "--rows", "10").exception
    assert isinstance(error, SettingsError)
    assert "dedup.num_perm is at most 9000" in str(error)


def test_bands_of_the_settings_are_judged(tmp_path: Path) -> None:
    """Configured bands are compared with the options."""
    path = tmp_path / "streamdedup.yaml"
    path.write_text("dedup: {bands: 9, rows: 13, num_perm: 128}\n")
    found = tuned("--config", path)
    assert (found["given"]["bands"], found["given"]["rows"]) == (9, 13)
    assert "39.9%" in found["doubts"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--bands", "20"], "belong together", id="half-a-banding"),
        pytest.param(["--threshold", "1.5"], "threshold", id="threshold"),
        pytest.param(["--num-perm", "2"], "cannot reach recall", id="too-few-values"),
        pytest.param(["--plot", "curves.pdf"], ".png or .svg", id="picture"),
    ],
)
def test_wrong_flags(arguments: list[str], words: str) -> None:
    """An invalid flag is one line."""
    error = tune(*arguments).exception
    assert isinstance(error, SettingsError)
    assert words in str(error)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    """The suffix determines the format of the picture."""
    path = tmp_path / f"curves.{suffix}"
    assert tune("--plot", path, "--bands", "9", "--rows", "13").exit_code == 0
    beginning = path.read_bytes()[:100]
    assert beginning.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in beginning


def test_plot_that_cannot_be_written(tmp_path: Path) -> None:
    """A picture in a missing folder is an error."""
    assert isinstance(tune("--plot", tmp_path / "no" / "x.png").exception, InputError)


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib the error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = tune("--plot", tmp_path / "x.png").exception
    assert isinstance(error, SettingsError)
    assert install("plot") in str(error)
