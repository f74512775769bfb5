"""*Blocking.* Apache Kafka's jars: downloaded once by Maven into the user's cache folder.

`python -m deploy.broker.jars` downloads them and prints the folder, for scripts. pom.xml pins the
release of Kafka; STREAMDEDUP_TEST_KAFKA, e.g. 3.9.2, selects another one.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from deploy.broker.errors import BrokerError, BrokerUnobtainable

POM = Path(__file__).with_name("pom.xml")

VERSION_VARIABLE = "STREAMDEDUP_TEST_KAFKA"

REMEDY = (
    "run `apt-get install openjdk-17-jre-headless maven`, or start a Docker engine,"
    " or set STREAMDEDUP_TEST_BOOTSTRAP to a broker's host:port"
)

_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"
_DOWNLOAD_SECONDS = 600
_TAIL_CHARACTERS = 2000


def kafka_version() -> str:
    """Return the release of Kafka that the environment selects, else the one of pom.xml.

    Raises:
        BrokerUnobtainable: the environment does not name a release.
    """
    selected = os.environ.get(VERSION_VARIABLE, "").strip()
    if selected and not re.fullmatch(r"\d+\.\d+\.\d+", selected):
        raise BrokerUnobtainable(
            f"invalid {VERSION_VARIABLE} {selected!r}: not a release of Kafka, e.g. 3.9.2"
        )
    return selected or pinned_version()


def pinned_version() -> str:
    """Return the release of Kafka that pom.xml pins."""
    project = ET.parse(POM)  # noqa: S314 - a file of this repository
    version = project.findtext(f"{_NAMESPACE}properties/{_NAMESPACE}kafka.version")
    if version is None:
        raise BrokerError(f"{POM} names no kafka.version")
    return version


def cache_folder() -> Path:
    """Return the folder that keeps downloads and built files between runs."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home else Path.home() / ".cache"
    return base / "streamdedup"


def obtain_jars() -> Path:
    """Return the folder with the jars; download them if it is missing or outdated.

    Parallel runs wait for each other, and the folder appears only when it is complete.
    """
    folder = cache_folder() / f"kafka-{kafka_version()}"
    if _is_current(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not _is_current(folder):
            _download(folder)
    return folder


def _is_current(folder: Path) -> bool:
    copy = folder / POM.name
    return copy.is_file() and copy.read_bytes() == POM.read_bytes()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnobtainable(f"Maven is missing, which downloads Kafka's jars: {REMEDY}")
    print(
        f"downloading Apache Kafka {kafka_version()} with Maven (only once)",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kafka-") as scratch:
        downloaded = Path(scratch) / "jars"
        _copy_dependencies(maven, downloaded)
        shutil.copyfile(POM, downloaded / POM.name)
        shutil.rmtree(folder, ignore_errors=True)
        downloaded.rename(folder)


def _copy_dependencies(maven: str, target: Path) -> None:
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--strict-checksums",
        f"--file={POM}",
        f"-Dkafka.version={kafka_version()}",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={target}",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BrokerUnobtainable(f"Maven did not finish within {_DOWNLOAD_SECONDS} s") from None
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-_TAIL_CHARACTERS:]
        raise BrokerUnobtainable(f"Maven could not download Kafka's jars:\n{output}")


def main() -> int:
    """Download the jars and print their folder."""
    try:
        print(obtain_jars())
    except BrokerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
