import sys
from pathlib import Path

from seeupo.envs.pool.interpreter import Runtime, find_runtime


def make_installation(prefix):
    """Create the files of an installation that decide what is shown."""
    for name in ("bin/python3.11", "lib/python3.11/os.py", "share/man/page"):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).touch()


def make_venv(prefix, *, target, home):
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    (prefix / "bin/python").symlink_to(target)
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    return prefix / "bin/python"


def test_this_interpreter_is_covered():
    mounts = [*find_runtime(Path(sys.executable)).mounts, Path("/usr")]
    for needed in (Path(sys.base_prefix).resolve() / "lib", Path(sys.prefix) / "lib", Path(sys.executable)):
        assert any(needed.is_relative_to(mount) for mount in mounts), needed


def test_a_virtual_environment_and_its_base_are_shown_in_part(tmp_path):
    base, env = tmp_path / ".pyenv/versions/3.11.7", tmp_path / "project"
    make_installation(base)
    python = make_venv(env, target=base / "bin/python3.11", home=base / "bin")
    shown = (base / "bin", base / "lib", env / "bin", env / "lib", env / "pyvenv.cfg")
    assert find_runtime(python) == Runtime(shown, {})


def test_directories_that_only_hold_links_are_not_shown(tmp_path):
    base, env, link = tmp_path / ".local/share/uv/one", tmp_path / "env", tmp_path / ".local/bin/python3"
    make_installation(base)
    link.parent.mkdir(parents=True)
    link.symlink_to(base / "bin/python3.11")
    python = make_venv(env, target=link, home=link.parent)
    shown = (base / "bin", base / "lib", env / "bin", env / "lib", env / "pyvenv.cfg")
    assert find_runtime(python) == Runtime(shown, {link: base / "bin/python3.11"})


def test_the_systems_interpreter_needs_nothing_else(tmp_path):
    python = make_venv(tmp_path, target="/usr/bin/python3", home="/usr/bin")
    assert find_runtime(python) == Runtime((tmp_path / "bin", tmp_path / "lib", tmp_path / "pyvenv.cfg"), {})
    assert find_runtime(Path("/usr/bin/python3")) == Runtime((), {})
    assert find_runtime(Path("/bin/python3")) == Runtime((), {})


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, target in (("a", "b"), ("b", "a")):
        (tmp_path / "bin" / name).symlink_to(target)
    assert find_runtime(tmp_path / "bin/a").mounts == ()
