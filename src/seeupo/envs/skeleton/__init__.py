"""The skeleton of a custom environment and its test, which `seeupo envs new` copies."""

from __future__ import annotations

import importlib.util
import keyword
from importlib.resources import files
from pathlib import Path

from seeupo.errors import EnvError

MODULE, CLASS = "seeupo.envs.skeleton.environment", "Skeleton"
"""Names in the files that are replaced."""


def write_skeleton(name: str, folder: Path) -> tuple[str, list[Path]]:
    """Write NAME.py and test_NAME.py; return the reference of the factory and the files. Nothing is overwritten."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise EnvError(f"{name!r} cannot be the name of a module: expected small letters, digits and _, such as my_env")
    paths = {folder / f"{name}.py": "environment.py", folder / f"test_{name}.py": "environment_test.py"}
    if existing := [path.name for path in paths if path.exists()]:
        raise EnvError(f"{existing[0]} already exists; choose another name, or remove the file")
    if importlib.util.find_spec(name) is not None:
        raise EnvError(f"{name!r} is the name of an installed module, which would hide yours; choose another name")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path, source in paths.items():
        text = (files(__name__) / source).read_text(encoding="utf-8")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text.replace(MODULE, name).replace(CLASS, class_name).replace("NAME", name))
        except OSError as error:
            raise EnvError(f"{path.name} cannot be written: {error.strerror or error}") from None
    return f"{name}:{class_name}Factory", list(paths)
