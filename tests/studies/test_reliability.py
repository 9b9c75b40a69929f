"""Tests of the reliability study on runs of a second or two."""

import json

import pytest
from click.testing import CliRunner

from seeupo.config.loader import recipe_to_toml
from studies.__main__ import main
from studies.reliability import table_of
from training.small_runs import small


def row(seed, before, after, control):
    scores = {"before": before, "after": after, "control": control}
    estimates = {when: {"avg@4": {"value": value, "low": 0.0, "high": 1.0}} for when, value in scores.items()}
    return {"seed": seed, "k": 4, "minutes": 2.0, "optimizer_steps": 9, **estimates}


def test_table_requires_every_run_to_double_and_to_beat_its_control():
    table = table_of("r", [row(0, 0.2, 0.9, 0.3), row(1, 0.4, 0.85, 0.5)])
    assert (table["lowest_after"], table["all_double"], table["all_above_control"]) == (0.85, True, True)
    assert table["mean_before"] == pytest.approx(0.3)
    assert not table_of("r", [row(0, 0.2, 0.39, 0.3)])["all_double"]
    assert not table_of("r", [row(0, 0.2, 0.9, 0.95)])["all_above_control"]


@pytest.mark.nightly
def test_runs_and_controls_are_trained_once(tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text(recipe_to_toml(small(run={"iterations": 1}, evaluation={"every": 0})))
    arguments = ["reliability", str(recipe), "--seeds", "1", "--folder", str(tmp_path / "runs")]
    first = CliRunner().invoke(main, [*arguments, "--json", str(tmp_path / "table.json")])
    assert first.exit_code == 0, first.output
    table = json.loads((tmp_path / "table.json").read_text())
    control = json.loads((tmp_path / "runs" / "control-0" / "summary.json").read_text())
    trained = json.loads((tmp_path / "runs" / "seed-0" / "summary.json").read_text())
    assert table["runs"][0]["control"] == control["before"]["avg@2"]
    steps = small().warm_start.batches + trained["optimizer_steps"]
    assert f"batches = {steps}" in (tmp_path / "runs" / "control-0" / "recipe.toml").read_text()
    again = CliRunner().invoke(main, arguments)
    assert again.stdout == first.stdout
