"""The locator of a read-only numba cache; `.ci/image` tests it in a container."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numba
import pytest

from streamdedup.dedup.rule import which_in_reach
from streamdedup.kernels import WarmedCacheLocator, uninterrupted
from streamdedup.sketch import codec


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one kernel in it, and a folder for temporary files."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    cache = Path(_locator().get_cache_path())
    (cache / "kernel.nbi").write_bytes(b"index")
    (cache / "kernel.1.nbc").write_bytes(b"code")
    tmp_path.joinpath("tmp").mkdir()
    return cache


def _locator() -> Any:
    find: Any = WarmedCacheLocator.from_function
    return find(codec.SignatureCodec.pack, codec.__file__)


def _refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let numba's attempt at writing fail, as it does on a read-only file system."""

    def refuse(**_: object) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


def test_a_cache_that_can_be_written_to_is_used_as_it_is(cache: Path) -> None:
    """A writable cache is used as numba does by default."""
    assert Path(_locator().get_cache_path()) == cache


def test_a_read_only_cache_is_linked_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writable folder links to the kernels; a second process uses the same folder."""
    _refuse_writing(monkeypatch)
    for _ in range(2):
        found = Path(_locator().get_cache_path())
        assert found.parent.parent == Path(tempfile.gettempdir())
        assert {file.name: file.readlink() for file in found.iterdir()} == {
            file.name: file for file in cache.iterdir()
        }


def test_a_read_only_cache_is_read_where_nothing_can_be_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder for temporary files, the cached kernels are still used."""
    _refuse_writing(monkeypatch)
    Path(tempfile.gettempdir()).rmdir()
    Path(tempfile.gettempdir()).write_bytes(b"in the way")
    assert Path(_locator().get_cache_path()) == cache


def _compilation(signature: Any) -> str:
    """Do what a compilation does that an interrupt hits."""
    signal.raise_signal(signal.SIGINT)
    return f"compiled {signature}"


def test_the_compilation_is_announced_once(tmp_path: Path) -> None:
    """Two kernels are compiled, or found in the cache."""
    program = tmp_path / "kernels.py"
    one = "@kernel\ndef {0}(x): return x + 1\n{0}(1)\n"
    program.write_text(
        "from streamdedup.kernels import kernel\n" + one.format("first") + one.format("second")
    )
    said = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, str(program)],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(ran.stderr.count("compiling kernels"))
    assert said == [1, 0]


@pytest.fixture(name="read_only")
def _read_only(tmp_path: Path) -> Path:
    """A program with a kernel, whose folder and home cannot have a cache."""
    program = tmp_path / "kernels.py"
    program.write_text(
        "from streamdedup.kernels import kernel\n@kernel\ndef f(x): return x + 1\nprint(f(1))\n"
    )
    tmp_path.joinpath("__pycache__").write_bytes(b"in the way, also of root")
    tmp_path.joinpath("tmp").mkdir()
    return program


def _said(program: Path) -> str:
    """Run the program without a home; return what it writes to the standard error."""
    changed = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), "/proc/missing")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    ran = subprocess.run(
        [sys.executable, str(program)],
        env=kept | changed | {"TMPDIR": str(program.parent / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
    return ran.stderr


def test_without_a_cache_folder_a_private_temporary_one_is_used(read_only: Path) -> None:
    """The first run says in one line what to set, and the second one finds the kernel."""
    folder = read_only.parent / "tmp" / f"streamdedup-kernels-{os.getuid()}"
    said = _said(read_only)
    assert said.count("\n") == 1
    assert f"{folder}, until it is emptied; to keep them, set NUMBA_CACHE_DIR" in said
    assert folder.stat().st_mode & 0o777 == 0o700
    assert _said(read_only) == ""


def test_a_temporary_folder_that_others_can_change_has_no_cache(read_only: Path) -> None:
    """Numba would execute what others put there; the kernel is compiled in each run."""
    folder = read_only.parent / "tmp" / f"streamdedup-kernels-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    for _ in range(2):
        said = _said(read_only)
        assert said.count("\n") == 1
        assert "each process compiles them; set NUMBA_CACHE_DIR" in said
    assert not list(folder.iterdir())


def test_a_full_disk_does_not_stop_a_kernel(read_only: Path) -> None:
    """The kernel is compiled and used; a warning says that it is not cached."""
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nprint("
    read_only.write_text(read_only.read_text().replace("print(", full))
    assert "cannot cache a kernel: [Errno 27]" in _said(read_only)


def test_a_kernel_is_sent_by_its_name() -> None:
    """A process that gets one, such as an executor of Spark, finds its own with its cache."""
    sent = pickle.dumps((codec.SignatureCodec.pack, which_in_reach)).hex()
    program = (
        "import pickle\nfrom streamdedup.dedup import rule\nfrom streamdedup.sketch import codec\n"
        f"pack, in_reach = pickle.loads(bytes.fromhex('{sent}'))\n"
        "print(pack is codec.SignatureCodec.pack, in_reach is rule.which_in_reach)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "True True\n"


def test_an_interrupt_waits_until_a_kernel_is_loaded() -> None:
    """The handler that was installed before runs afterwards, once."""
    finished: list[str] = []

    def compile_(signature: Any) -> None:
        finished.append(_compilation(signature))

    # A shell starts background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(compile_)("one")
        assert finished == ["compiled one"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_do_not_touch_the_handlers() -> None:
    """Only the main thread may, and only there do handlers raise."""
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(uninterrupted(str), 7).result() == "7"
