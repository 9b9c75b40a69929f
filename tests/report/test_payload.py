"""The report of a real run, compared with values recomputed from its files."""

import json
import math

import pytest
import torch

from report.decoding import decoded
from report.made_runs import made_run
from seeupo.core.advantages import group_advantages
from seeupo.errors import RunError
from seeupo.evaluation.results import VERDICTS
from seeupo.report.payload import report_chunks
from seeupo.report.write import write_report
from seeupo.runs.reader import read_run
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.run import train
from training.small_runs import small


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "small"
    train(small(), run_dir=run_dir)
    return run_dir


@pytest.fixture(scope="module")
def page(run):
    return decoded(run)


def test_overview_matches_the_summary(run, page):
    summary = json.loads((run / "summary.json").read_text())
    (top,) = page.runs
    assert (top["name"], top["model"], top["environment"], top["algorithm"]) == ("small", "tiny", "pocket", "seeupo")
    assert top["scores"][0]["before"]["value"] == pytest.approx(summary["before"]["avg@2"]["value"], abs=1e-5)
    assert top["scores"][1]["difference"]["low"] == pytest.approx(summary["difference"]["pass@2"]["low"], abs=1e-5)
    assert dict(top["details"])["Iterations"] == "3 of 3"
    assert top["verdict"] in ("improved", "no_change", "regressed")


def test_page_contains_every_training_trajectory(run, page):
    files = {int(path.name[:5]): list(read_trajectories(path)) for path in (run / "trajectories").iterdir()}
    expected = sorted((number, each.id) for number, members in files.items() for each in members)
    assert sorted((row["iteration"], row["id"]) for row, _ in page.rows() if row["phase"] == 0) == expected
    assert len(expected) == 48


def test_page_contains_held_out_trajectories_before_and_after_training(page):
    assert page.runs[0]["missing"] == []
    found = {1: [], 2: []}
    for row, body in page.rows():
        if row["phase"]:
            found[row["phase"]].append((row["task"], row["id"]))
            assert row["kind"]
            assert all(turn["credit"] is None for turn in body["turns"])
    assert sorted(found[1]) == sorted(found[2])
    assert len(found[1]) == 8


def test_credit_of_every_turn_follows_from_the_files(run, page):
    """Advantages follow from rewards, ratios from log-probs, and M from ratios in update order."""
    views = {(row["iteration"], row["id"]): (row, body) for row, body in page.rows() if row["phase"] == 0}
    orders = {each["iteration"]: [t["turn"] for t in each["turns"]] for each in read_run(run).records["iteration"]}
    checked = 0
    for path in sorted((run / "trajectories").iterdir()):
        iteration, members = int(path.name[:5]), list(read_trajectories(path))
        names = sorted({each.group for each in members})
        rewards = torch.tensor([each.reward for each in members], dtype=torch.float64)
        groups = torch.tensor([names.index(each.group) for each in members])
        for each, advantage in zip(members, group_advantages(rewards, groups).tolist(), strict=True):
            row, body = views[iteration, each.id]
            group = [other.reward for other in members if other.group == each.group]
            assert body["group_mean"] == pytest.approx(sum(group) / len(group), abs=1e-5)
            assert (body["group_rewards"], body["group_size"]) == (group, 4)
            assert row["advantage"] == pytest.approx(advantage, rel=1e-4)
            assert row["reward"] == each.reward
            carried, new = advantage, {turn.turn: turn.new_logprobs for turn in each.credit.turns}
            order = [turn for turn in orders[iteration] if turn < len(each.turns)] if advantage else []
            for position, turn in enumerate(order, 1):
                old, shown = each.turns[turn].behavior_logprobs, body["turns"][turn]
                ratio = math.exp((math.fsum(new[turn]) - math.fsum(old)) / len(old))
                assert shown["credit"]["position"] == position
                assert shown["credit"]["ratio"] == pytest.approx(ratio, rel=1e-4)
                assert shown["credit"]["before"] == pytest.approx(carried, rel=1e-3)
                carried *= ratio
                assert shown["credit"]["after"] == pytest.approx(carried, rel=1e-3)
                assert shown["credit"]["clipped"] is (
                    (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
                )
                changes = [change for _, change in shown["tokens"]]
                assert changes == pytest.approx([a - b for a, b in zip(new[turn], old, strict=True)], abs=1e-5)
                checked += 1
            assert all((turn["credit"] is None) == (not advantage) for turn in body["turns"])
    assert checked > 20


def test_texts_match_the_trajectory_files(run, page):
    for path in (run / "trajectories").iterdir():
        for each in read_trajectories(path):
            body = page.body(each.id)
            assert body["opening"] == each.opening
            for shown, turn, expected in zip(body["turns"], each.turns, each.turn_texts, strict=True):
                text = "".join(text for text, _ in shown["tokens"])
                assert text.removesuffix(" <|im_end|>").removesuffix("<|im_end|>") == expected.response
                assert shown["observation"] == expected.observation
                assert shown["prompt_tokens"] == len(turn.prompt_ids)


def test_report_is_reproducible_and_leaves_no_other_files(run, tmp_path):
    summary = write_report([run], tmp_path / "new" / "report.html")
    assert summary.path.stat().st_size == summary.size > 10_000
    assert summary.kept == summary.total >= 48
    assert summary.missing == ((),)
    assert summary.sentences[0].startswith(tuple(VERDICTS.values()))
    assert [path.name for path in summary.path.parent.iterdir()] == ["report.html"]
    content = summary.path.read_bytes()
    write_report([run], summary.path)
    assert summary.path.read_bytes() == content


def test_several_runs_share_a_report(run, tmp_path):
    summary = write_report([run, made_run(tmp_path / "made")], tmp_path / "report.html")
    assert len(summary.sentences) == 2


def test_errors_name_the_problem(run, tmp_path):
    with pytest.raises(RunError, match="no run given"):
        report_chunks([], max_bytes=1)
    with pytest.raises(RunError, match="not a run directory"):
        write_report([tmp_path], tmp_path / "report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"report\.html cannot be written"):
        write_report([run], tmp_path / "file" / "report.html")


def test_unreadable_tokenizer_is_reported(tmp_path):
    made = made_run(tmp_path / "made")
    (made / "policy" / "tokenizer.json").write_text("{}")
    page = decoded(made)
    assert "tokenizer cannot be read" in " ".join(page.runs[0]["missing"])
    assert all(change is None for _, body in page.rows() for turn in body["turns"] for _, change in turn["tokens"])
