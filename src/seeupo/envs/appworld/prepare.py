"""The step after the installation of the package: AppWorld ships its apps in a bundle, to keep them from crawlers."""

from __future__ import annotations

import compileall
from pathlib import Path


def prepare(folder: Path) -> None:
    """Unpack the apps into the installed package. Runs in the environment's own interpreter and needs no network."""
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
    # Workers see all of this read-only and could not keep what they compile.
    compileall.compile_dir(package / "apps", quiet=1)
