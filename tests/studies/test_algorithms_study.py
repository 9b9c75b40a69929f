"""Tests of the study of all algorithms on runs of a second or two."""

import json

from click.testing import CliRunner

from seeupo.algorithms import ALGORITHMS
from seeupo.cli import main
from seeupo.config.loader import recipe_to_toml
from seeupo.studies.algorithms import table_of
from training.small_runs import small


def row(algorithm, seed, before, after):
    estimates = {
        when: {"value": value, "low": 0.0, "high": 1.0} for when, value in (("before", before), ("after", after))
    }
    return {"algorithm": algorithm, "seed": seed, "k": 4, "minutes": 2.0, "optimizer_steps": 9, **estimates}


def test_table_names_the_algorithms_that_double():
    table = table_of("r", [row("ppo", 0, 0.2, 0.9), row("ppo", 1, 0.4, 0.7), row("grpo", 0, 0.2, 0.5)])
    assert {name: found["all_double"] for name, found in table["algorithms"].items()} == {"ppo": False, "grpo": True}
    assert table["algorithms"]["ppo"]["mean_after"] == 0.8


def test_every_algorithm_starts_from_the_same_warm_start(tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text(recipe_to_toml(small(run={"iterations": 1}, evaluation={"every": 0})))
    arguments = ["study", "algorithms", str(recipe), "--seeds", "1", "--folder", str(tmp_path / "runs")]
    done = CliRunner().invoke(main, [*arguments, "--json", str(tmp_path / "table.json")])
    assert done.exit_code == 0, done.output
    table = json.loads((tmp_path / "table.json").read_text())
    assert list(table["algorithms"]) == list(ALGORITHMS)
    before = [
        json.loads((tmp_path / "runs" / f"{name}-0" / "evaluations" / "00000.json").read_text())["episodes"]
        for name in ALGORITHMS
    ]
    assert all(episodes == before[0] for episodes in before)
    assert len(done.stdout.splitlines()) == 2 + len(ALGORITHMS)
