"""`python -m studies credit`, and the page that quotes its verdicts."""

import json
from pathlib import Path

from click.testing import CliRunner

from studies import credit
from studies.__main__ import main
from studies.credit.study import AXES, score_setting

PAGES = Path(__file__).parents[3] / "studies" / "credit"


def test_the_command_writes_scores_and_verdicts(tmp_path, monkeypatch):
    chosen = [credit.Setting("chain", turns=2, group_size=32), credit.Setting("decisive", turns=3, group_size=32)]
    monkeypatch.setattr(credit, "settings", lambda: chosen)
    monkeypatch.setattr(credit, "measure", lambda seed: (score_setting(setting, seed) for setting in reversed(chosen)))
    monkeypatch.setattr("studies.credit.report.write_report", lambda results, questions, directory: directory)
    result = CliRunner().invoke(main, ["credit", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    comparison = json.loads((tmp_path / "credit.json").read_text())
    assert [each["label"] for each in comparison["settings"]] == [setting.label for setting in chosen]
    assert comparison["settings"][0]["methods"]["true advantage"]["sign"] == 1
    assert comparison["verdicts"][0]["verdict"] in set(credit.Verdict)


def test_every_axis_varies_alone():
    settings = credit.settings()
    assert len(settings) == len(set(settings)) == 32
    for kind in ("chain", "deceptive"):
        assert {setting.turns for setting in settings if setting.kind == kind} == set(AXES["turns"])
        assert {setting.decisive for setting in settings if setting.kind == kind} == {3}


def test_the_page_quotes_the_computed_verdicts():
    page = " ".join((PAGES / "README.md").read_text().split())  # lines wrap
    for number, verdict in enumerate(json.loads((PAGES / "credit.json").read_text())["verdicts"]):
        if number == 0:
            assert f"Verdict: **{verdict['verdict']}**. {verdict['sentence']}" in page
            assert all(f"| {kind} | {text} |" in page for kind, text in verdict["by_kind"].items())
        else:
            assert f"| {verdict['question']} | {verdict['verdict']} |" in page


def test_the_report_has_a_figure_per_axis(tmp_path):
    from studies.credit.methods import METHODS
    from studies.credit.report import write_report
    from studies.credit.study import Score

    score = Score(0.5, None, 0.5, 0.5, None, None, 0.1, (0.1, 0.2))
    results = [credit.Scores(setting, {method.name: score for method in METHODS}) for setting in credit.settings()]
    page = write_report(results, credit.questions(results), tmp_path / "report")
    assert {path.stem for path in page.parent.glob("figures/*.svg")} == {
        "methods", "turns", "group_size", "noise", "kl", "decisive"
    }  # fmt: skip
    assert "| GRPO | 0.500 | - |" in page.read_text()
