"""*Blocking.* Builds the stand-in image under the official image's name, without pulling anything.

`python -m deploy.broker.image.build`, as root and with a Docker engine: a Debian base with a Java
runtime made by debootstrap (kept in the user's cache folder), Kafka's jars, the files beside this
one. Where the image of that name is there already, or can be pulled, nothing is built.
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
_NO_MEANS = 3

# Half of the tree's size, and nothing that a broker reads.
_DROPPED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt")


def build_image() -> str:
    """Build the stand-in image on the engine that answers; return its name."""
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
    """Return the base's tar archive, making it where the cache folder has none."""
    archive = cache_folder() / f"base-{_SUITE}-{_PACKAGES}.tar"
    if archive.exists():
        return archive
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise BrokerUnobtainable("making the image's base needs debootstrap, and root to run it")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streamdedup-base-") as scratch:
        tree, packed = Path(scratch, "tree"), archive.with_name(f".{archive.name}.{os.getpid()}")
        print("making a Debian base with Java, once (one to two minutes)", file=sys.stderr)
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
        said = (done.stdout + done.stderr).strip()[-_TAIL_CHARACTERS:]
        raise BrokerUnobtainable(f"{command[0]} failed; it said:\n{said}")


def main() -> int:
    """Make sure that the engine has an image of the official name; print that name.

    Returns 3 where this machine lacks the means, and 1 where they are there and it still fails.
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
        return _NO_MEANS if isinstance(error, BrokerUnobtainable) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
