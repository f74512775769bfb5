"""*Blocking.* Builds a substitute image under the official image's name, without pulling any.

`python -m deploy.broker.image.build` needs root and a Docker engine. The image contains a Debian
base with Java, made by debootstrap and kept in the user's cache folder, Kafka's jars, and the files
of this folder. If the official image exists or can be pulled, nothing is built.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docker.errors import BuildError, DockerException
from testcontainers.core.docker_client import DockerClient

from deploy.broker.container import engine_answers, image_name, missing_image
from deploy.broker.errors import BrokerError, BrokerUnobtainable
from deploy.broker.jars import POM, cache_folder, obtain_jars

_HERE = Path(__file__).parent
_BASE_IMAGE = "streamdedup-test-jre"
_SUITE = "bookworm"
_PACKAGES = "openjdk-17-jre-headless"
_DEBOOTSTRAP_SECONDS = 900
_ENGINE_SECONDS = 600
_TAIL_CHARACTERS = 2000
_UNOBTAINABLE_STATUS = 3

_DROPPED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt")
"""Folders that a broker does not read, which are half of the tree's size."""


def build_image() -> str:
    """Build the substitute image with the Docker engine; return its name."""
    base, jars = obtain_base(), obtain_jars()
    client = DockerClient(timeout=_ENGINE_SECONDS).client
    try:
        client.api.import_image_from_file(str(base), repository=_BASE_IMAGE)
        with tempfile.TemporaryDirectory(prefix="streamdedup-image-") as context:
            _lay_out(Path(context), jars)
            client.images.build(path=context, tag=image_name(), rm=True, network_mode="none")
    except (BuildError, DockerException) as error:
        raise BrokerError(f"the engine could not build {image_name()}: {error}") from error
    finally:
        client.close()
    return image_name()


def obtain_base() -> Path:
    """Return the base's tar archive; create it if the cache folder has none."""
    archive = cache_folder() / f"base-{_SUITE}-{_PACKAGES}.tar"
    if archive.exists():
        return archive
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise BrokerUnobtainable("the base of the image needs debootstrap, run as root")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streamdedup-base-") as scratch:
        tree, packed = Path(scratch, "tree"), archive.with_name(f".{archive.name}.{os.getpid()}")
        print("creating a Debian base with Java (only once, one to two minutes)", file=sys.stderr)
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(tree))
        for name in _DROPPED:
            shutil.rmtree(tree / name, ignore_errors=True)
        _run("tar", "--create", "--one-file-system", f"--file={packed}", f"--directory={tree}", ".")
        packed.rename(archive)
    return archive


def _lay_out(context: Path, jars: Path) -> None:
    shutil.copytree(
        _HERE, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    shutil.copytree(jars, context / "jars", ignore=shutil.ignore_patterns(POM.name))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEBOOTSTRAP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerUnobtainable(str(error)) from None
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-_TAIL_CHARACTERS:]
        raise BrokerUnobtainable(f"{command[0]} failed:\n{output}")


def main() -> int:
    """Ensure that the engine has an image of the official name, and print the name.

    Returns:
        The exit status: 3 if this machine cannot build the image, 1 if the build failed.
    """
    argparse.ArgumentParser(
        prog="python -m deploy.broker.image.build", description=__doc__
    ).parse_args()
    try:
        if not engine_answers():
            raise BrokerUnobtainable("no Docker engine answers")
        print(image_name() if missing_image() is None else build_image())
    except BrokerError as error:
        print(f"error: {error}", file=sys.stderr)
        return _UNOBTAINABLE_STATUS if isinstance(error, BrokerUnobtainable) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
