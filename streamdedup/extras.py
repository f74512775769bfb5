"""*Blocking* (reads the package's metadata). The command that installs the packages of an extra.

It names the packages, and not this one, so that the installed release stays as it is.
"""

from __future__ import annotations

import shlex
from importlib import metadata

DISTRIBUTION = "streamdedup-filter"
"""The name in package indexes. In PyPI, ``streamdedup`` belongs to another project."""


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra in this release's pyproject."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # the source tree is on the path, and not installed
        return f"pip install '.[{extra}]' in the checkout"
    marked = [each.partition(";") for each in requirements]
    wanted = f'extra == "{extra}"'
    packages = [
        name.strip() for name, _, marker in marked if marker.replace("'", '"').strip() == wanted
    ]
    return shlex.join(["pip", "install", *packages])
