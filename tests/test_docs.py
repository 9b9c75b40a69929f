"""What the documentation says is what there is."""

import json
import re
from pathlib import Path

import pytest

from seeupo.algorithms import ALGORITHMS
from seeupo.runs.evaluations import shown
from seeupo.studies import algorithms
from seeupo.studies.reliability import markdown

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["README.md", "docs/theory.md"])
def test_verdicts_are_the_measured_ones(page):
    claims = json.loads((ROOT / "docs/theory/theory.json").read_text())["claims"]
    text = (ROOT / page).read_text()
    assert len(claims) == 13
    for claim in claims:
        pattern = rf"^\| {claim['id']} \| \[?{re.escape(claim['title'])}.* \| {claim['verdict']} \|$"
        assert re.search(pattern, text, re.MULTILINE), claim["title"]


def test_performance_figures_are_the_measured_ones():
    page = (ROOT / "docs/performance.md").read_text()

    def results(name: str):
        return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())

    for case in results("update_speed")["cases"].values():
        ways = case["ways"]
        ours = next(way for way in ways if way["way"] == "tree")
        best = min((way for way in ways if way["way"] == "trl"), key=lambda way: way["seconds"])
        assert f"| {ours['seconds']:.1f} s, {ours['peak_gib']:.1f} GiB | {best['seconds']:.1f} s" in page
        assert f"**{best['seconds'] / ours['seconds']:.1f}x**" in page
    for turns, cost in results("seeupo_cost")["turns"].items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {turns} | "))
        for way in ("unshared whole GRPO", "unshared sliced GRPO"):
            assert f"**{cost['seeupo_against'][way]:.2f}x**" in row
    sampling = results("sampling_speed")
    for batch, found in sampling["decoding"].items():
        ratios = [found["ratios"][name] for name in ("hugging_face", "vllm")]
        assert re.search(rf"decoding, batch {batch} \|.*\| {ratios[0]:.1f}x \| {ratios[1]:.1f}x \|", page)
    ratios = [sampling["rollout"]["ratios"][name] for name in ("hugging_face", "vllm")]
    assert f"| **{ratios[0]:.1f}x** | **{ratios[1]:.1f}x** |" in page
    for phase, share in sampling["share_of_matrix_product_rate"].items():
        assert f"| {phase} | {share:.0%} |" in page
    # An update is three passes of two operations per weight outside the embeddings and distinct token.
    update = results("update_speed")
    for name, case in update["cases"].items():
        prompt, action = map(int, name.split("/"))
        ours = next(way["seconds"] for way in case["ways"] if way["way"] == "tree")
        rate = 6 * 106e6 * (prompt + 8 * action) / ours / 1e9
        share = rate / update["machine"]["gflops_of_matrix_products"]
        assert f"| update, {prompt} / {action} | {share:.0%} |" in page


def test_profiles_of_training_are_the_measured_ones_and_within_their_aims():
    page = (ROOT / "docs/performance.md").read_text()
    operations, python, memory = (
        json.loads((ROOT / "benchmarks/results" / f"training_{name}.json").read_text())
        for name in ("operations_smollm2-pocket", "python_tiny-pocket", "memory_tiny-pocket")
    )
    assert operations["matrix_products_and_attention"] >= 0.6
    assert f"matrix products and attention | {operations['matrix_products_and_attention']:.0%} of its time |" in page
    assert python["shares"]["our own Python"] < 0.25
    assert f"own Python | {python['shares']['our own Python']:.0%} of its time |" in page
    assert memory["iterations"] == 200
    assert memory["mb_at_tenths"][-1] <= 1.01 * memory["mb_at_tenths"][4]
    assert ", ".join(map(str, memory["mb_at_tenths"])) in page


def test_the_report_of_a_long_run_is_as_quick_and_small_as_said():
    long = json.loads((ROOT / "benchmarks/results/report_scale.json").read_text())["iterations"]["200"]
    assert long["trajectories"] >= 20_000
    assert long["seconds"] < 20
    assert long["opens_in_seconds"] < 2
    assert long["page_mb"] < 30
    page = (ROOT / "docs/report.md").read_text()
    assert f"it took {long['processor_seconds']:.0f} seconds of one core and {long['peak_mib']} MiB" in page
    assert f"opens in {long['opens_in_seconds']} seconds" in page


def test_the_example_in_the_readme_runs(capsys):
    (example,) = re.findall(r"```python\n(import torch.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert float(last[1]) > 0.95 * float(last[-1])


def test_the_default_recipes_results_are_the_measured_ones_and_good_on_every_seed():
    table = json.loads((ROOT / "docs/results/tiny-pocket.json").read_text())
    page = (ROOT / "docs/results/README.md").read_text()
    assert all(line in page for line in markdown(table))
    assert f"goes from {table['mean_before']:.2f} to {table['mean_after']:.2f}" in page
    assert table["seeds"] == 10
    assert table["all_double"]
    assert table["lowest_after"] >= 0.8
    for run in table["runs"]:
        assert 0.1 <= run["before"]["value"] <= 0.4
        assert run["minutes"] <= 5
        assert run["control"]["high"] < run["after"]["low"]


def test_every_algorithm_doubles_the_default_recipe_as_measured():
    table = json.loads((ROOT / "docs/results/algorithms.json").read_text())
    page = (ROOT / "docs/results/README.md").read_text()
    assert all(line in page for line in algorithms.markdown(table))
    assert list(table["algorithms"]) == list(ALGORITHMS)
    for name, found in table["algorithms"].items():
        assert found["all_double"], name
        assert len(found["runs"]) >= 3
        assert f"{name} {found['mean_after']:.2f}" in page


def test_what_smollm2_learned_is_what_its_summary_says():
    summary = json.loads((ROOT / "docs/results/smollm2-pocket/summary.json").read_text())
    page = (ROOT / "docs/results/README.md").read_text()
    for name in ("avg@4", "pass@4"):
        cells = [shown(summary["before"][name]), shown(summary["after"][name])]
        cells.append(shown(summary["difference"][name], signed=True))
        assert f"| {name} | 0.000 | {' | '.join(cells)} |" in page
    assert f"It took {sum(summary['seconds'].values()) / 60:.0f} minutes" in page
    assert summary["difference"]["avg@4"]["low"] > 0
