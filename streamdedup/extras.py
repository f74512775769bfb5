"""*Blocking* (reads the package's metadata). The command that installs the packages of an extra.

It names the packages, and not this one: the name ``streamdedup`` belongs to another project in the
public package index, and the installed release stays as it is.
"""

from __future__ import annotations

import shlex
from importlib import metadata


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra of this release.

    Args:
        extra: such as ``arrow``; ``pyproject.toml`` lists them.
    """
    try:
        requirements = metadata.requires("streamdedup") or []
    except metadata.PackageNotFoundError:  # the source tree is on the path, and not installed
        return f"pip install '.[{extra}]' in the checkout"
    marked = [each.partition(";") for each in requirements]
    packages = [name.strip() for name, _, marker in marked if _is_of(marker, extra)]
    return shlex.join(["pip", "install", *packages])


def _is_of(marker: str, extra: str) -> bool:
    return marker.replace("'", '"').strip() == f'extra == "{extra}"'
