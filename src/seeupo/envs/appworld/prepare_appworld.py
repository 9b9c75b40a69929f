"""Unpack AppWorld's apps after its package was installed; they ship as a bundle, to hide them from crawlers."""

from __future__ import annotations

import compileall
from pathlib import Path


def prepare(folder: Path) -> None:
    """Unpack the apps into the installed package. Runs in the environment's interpreter without network access."""
    import appworld
    from appworld.common.constants import PASSWORD, SALT
    from appworld.common.utils import unpack_bundle

    del folder
    package = Path(appworld.__file__).parent
    unpack_bundle(
        bundle_file_path=str(package / ".source" / "apps.bundle"),
        base_directory=str(package),
        password=PASSWORD,
        salt=SALT,
    )
    # Workers mount the package read-only and cannot cache compiled files.
    compileall.compile_dir(package / "apps", quiet=1)
