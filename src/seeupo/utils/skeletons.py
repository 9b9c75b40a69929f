"""Skeletons of custom code and its test, which `seeupo envs new` and `seeupo algorithms new` copy."""

from __future__ import annotations

import importlib.util
import keyword
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from seeupo.errors import UserError

CLASS = "Skeleton"
"""The name in the files that the class name of the user's module replaces."""


@dataclass(frozen=True)
class Skeleton:
    """A working module and its test, as files of the library.

    Attributes:
        module: The module; its test is the same with "_test".
        suffix: End of the name of the class that users name.
    """

    module: str
    suffix: str = ""

    def write(self, name: str, folder: Path) -> tuple[str, list[Path]]:
        """Write NAME.py and test_NAME.py; return the reference of the class and the files. Nothing is overwritten."""
        if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
            raise UserError(f"{name!r} cannot be the name of a module: expected small letters, digits and _, as my_1")
        source = files("seeupo").joinpath(*self.module.split(".")[1:])  # importing its package might load torch
        paths = {folder / f"{name}.py": f"{source}.py", folder / f"test_{name}.py": f"{source}_test.py"}
        if existing := [path.name for path in paths if path.exists()]:
            raise UserError(f"{existing[0]} already exists; choose another name, or remove the file")
        if importlib.util.find_spec(name) is not None:
            raise UserError(f"{name!r} is the name of an installed module, which would hide yours; choose another name")
        class_name = "".join(part.capitalize() for part in name.split("_"))
        for path, template in paths.items():
            text = Path(template).read_text(encoding="utf-8")
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text.replace(self.module, name).replace(CLASS, class_name).replace("NAME", name))
            except OSError as error:
                raise UserError(f"{path.name} cannot be written: {error.strerror or error}") from None
        return f"{name}:{class_name}{self.suffix}", list(paths)


ENVIRONMENT = Skeleton("seeupo.envs.skeleton.environment", suffix="Factory")
ALGORITHM = Skeleton("seeupo.algorithms.skeleton.algorithm")
