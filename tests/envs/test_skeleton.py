"""`seeupo envs new` writes an environment that passes its test and the check, and overwrites nothing."""

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.config.loader import read_recipe, recipe_text
from seeupo.config.schema import Recipe
from seeupo.errors import UserError
from seeupo.utils.skeletons import ENVIRONMENT


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_the_skeleton_passes_its_test_and_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = run("envs", "new", "number_box")
    assert written.exit_code == 0, written.output
    assert "seeupo envs check number_box:NumberBoxFactory" in written.stdout
    assert "seeupo train custom --environment.name number_box:NumberBoxFactory" in written.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["number_box.py", "test_number_box.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_number_box.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    checked = run("envs", "check", "number_box:NumberBoxFactory")
    assert checked.exit_code == 0, checked.output
    planned = run("train", "custom", "--environment.name", "number_box:NumberBoxFactory", "--dry-run")
    assert planned.exit_code == 0, planned.output


def test_no_name_of_the_template_is_left(tmp_path):
    reference, paths = ENVIRONMENT.write("my_env2", tmp_path)
    assert reference == "my_env2:MyEnv2Factory"
    for path in paths:
        assert not re.search("skeleton|Skeleton|NAME", path.read_text())


@pytest.mark.parametrize("existing", ["mine.py", "test_mine.py"])
def test_nothing_is_overwritten(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    with pytest.raises(UserError, match=f"^{existing} already exists"):
        ENVIRONMENT.write("mine", tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(existing, "precious")]


@pytest.mark.parametrize("name", ["my-env", "3d", "", "a.b", "../x", "class", "MyEnv"])
def test_names_must_be_those_of_modules(tmp_path, name):
    with pytest.raises(UserError, match="cannot be the name of a module"):
        ENVIRONMENT.write(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_installed_modules_cannot_be_hidden(tmp_path):
    with pytest.raises(UserError, match="'json' is the name of an installed module"):
        ENVIRONMENT.write("json", tmp_path)


def test_the_recipe_for_it_explains_every_key_and_names_no_other_environment():
    recipe, text = read_recipe("custom"), recipe_text("custom")
    assert isinstance(recipe, Recipe)
    assert recipe.environment.name == "my_module:MyFactory"
    assert recipe.environment.options == {}
    assert "pocket" not in text
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            assert re.fullmatch(r"\w+ = .+?  # .+", line), line
