"""*Blocking.* Apache Kafka's jars: fetched by Maven once, and kept in the user's cache folder.

`python -m deploy.broker.jars` fetches them and prints the folder, for scripts.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from deploy.broker.errors import BrokerError, BrokerUnobtainable

POM = Path(__file__).with_name("pom.xml")

WHAT_TO_DO = (
    "run `apt-get install openjdk-17-jre-headless maven`, or start a Docker engine,"
    " or set STREAMDEDUP_TEST_BOOTSTRAP to a broker's host:port"
)

_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"
_FETCH_SECONDS = 600
_TAIL_CHARACTERS = 2000


def kafka_version() -> str:
    """Return the release of Kafka that pom.xml pins."""
    project = ET.parse(POM)  # noqa: S314 - a file of this repository
    version = project.findtext(f"{_NAMESPACE}properties/{_NAMESPACE}kafka.version")
    if version is None:
        raise BrokerError(f"{POM} names no kafka.version")
    return version


def cache_folder() -> Path:
    """Return the folder in which what is fetched or built for the broker outlives a run."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home else Path.home() / ".cache"
    return base / "streamdedup"


def obtain_jars() -> Path:
    """Return the folder with the jars, fetching them first where it is missing or outdated.

    Two runs at once wait for each other, and a folder appears only when it is complete.
    """
    folder = cache_folder() / f"kafka-{kafka_version()}"
    if _is_current(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not _is_current(folder):
            _fetch(folder)
    return folder


def _is_current(folder: Path) -> bool:
    copy = folder / POM.name
    return copy.is_file() and copy.read_bytes() == POM.read_bytes()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnobtainable(f"Maven, which fetches Kafka's jars, is missing: {WHAT_TO_DO}")
    print(f"fetching Apache Kafka {kafka_version()} with Maven, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kafka-") as scratch:
        fetched = Path(scratch) / "jars"
        _copy_dependencies(maven, fetched)
        shutil.copyfile(POM, fetched / POM.name)
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)


def _copy_dependencies(maven: str, target: Path) -> None:
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--strict-checksums",
        f"--file={POM}",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={target}",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BrokerUnobtainable(f"Maven did not finish within {_FETCH_SECONDS} s") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_TAIL_CHARACTERS:]
        raise BrokerUnobtainable(f"Maven could not fetch Kafka's jars; it said:\n{said}")


def main() -> int:
    """Fetch the jars and print their folder."""
    try:
        print(obtain_jars())
    except BrokerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
