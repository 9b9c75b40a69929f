"""`seeupo algorithms new` writes an algorithm that passes its test and has options like a shipped one."""

import re
import subprocess
import sys

from click.testing import CliRunner

from seeupo.cli import main
from seeupo.config.algorithms import AlgorithmSettings, load_algorithm
from seeupo.utils.skeletons import ALGORITHM


def test_the_algorithm_skeleton_passes_its_test_and_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    written = CliRunner().invoke(main, ["algorithms", "new", "batch_mean"])
    assert written.exit_code == 0, written.output
    assert "seeupo train --algorithm.name batch_mean:BatchMean" in written.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch_mean.py", "test_batch_mean.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_batch_mean.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    settings = load_algorithm(AlgorithmSettings(name="batch_mean:BatchMean"), ["batch_mean:BatchMean"])
    assert settings.options["scale"] == 1.0
    shown = CliRunner().invoke(main, ["algorithms", "show", "batch_mean:BatchMean"])
    assert re.search(r"^ +scale +1.0 +Factor of the advantages", shown.output, re.MULTILINE)
    sys.modules.pop("batch_mean")


def test_no_name_of_the_algorithm_template_is_left(tmp_path):
    reference, paths = ALGORITHM.write("mine", tmp_path)
    assert reference == "mine:Mine"
    for path in paths:
        assert not re.search("skeleton|Skeleton|NAME", path.read_text())
