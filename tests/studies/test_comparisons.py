"""The study files in studies/comparisons."""

from pathlib import Path

import pytest

from seeupo.comparison.comparison import Comparison
from seeupo.comparison.planned_runs import Planner
from seeupo.comparison.result_store import Store
from seeupo.comparison.study_file import read_study

ROOT = Path(__file__).parents[2]
COMPARISONS = ROOT / "studies/comparisons"


@pytest.mark.parametrize("path", sorted(COMPARISONS.glob("*.toml")), ids=lambda path: path.stem)
def test_study_files_are_valid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # study files name variants of SeeUPO by path
    study, recipe = read_study(str(path))
    comparison = Comparison(study, recipe, Store(tmp_path), trust=study.in_process_code(recipe))
    assert comparison.counts()["runs"] == len(study.arms) * len(study.seeds)


@pytest.mark.parametrize(
    ("name", "source"),
    [("steps", "main-normal"), ("control", "main-deceptive"), ("control-product", "main-deceptive")],
)
def test_studies_share_the_runs_of_their_reference(name, source):
    one, other = (Planner(*read_study(str(COMPARISONS / f"{file}.toml"))) for file in (name, source))
    assert all(settings in one.grid for settings in other.grid)
    assert (one.study.seeds, one.study.tuning_seeds) == (other.study.seeds, other.study.tuning_seeds)
    for settings in one.grid:
        matched = {**settings, "algorithm.steps_per_turn": 1}
        reference = next(iter(one.study.arms))
        assert one.run(reference, 10, settings).name == other.run(reference, 10, matched).name
