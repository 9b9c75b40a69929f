"""The documentation agrees with the code: links, commands, options, names, Python snippets, metrics and tables."""

import ast
import dataclasses
import importlib
import importlib.util
import itertools
import json
import re
import shlex
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType

import click
import numpy as np
import pytest
import torch

from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.cli import main
from seeupo.cli.train_command import parse_overrides
from seeupo.config.changes import Change, check_changes
from seeupo.config.loader import read_recipe, recipe_names
from seeupo.config.schema import Recipe
from seeupo.core.run_statistics import holm, mean_of_runs, p_value
from seeupo.core.statistics import paired_difference
from seeupo.engines.local import LocalEngine
from seeupo.engines.local_critic import CriticSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.envs.registry import names as environment_names
from seeupo.models.catalog import CATALOG
from seeupo.models.loading import load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.rollout.collector import Collected
from seeupo.runs.evaluations import Evaluation, compare
from seeupo.runs.run_directory import RunDirectory
from seeupo.studies import reliability
from seeupo.studies.compare.markdown import markdown, overview
from seeupo.studies.compare.sentences import interval_text
from seeupo.studies.compare.study import study_names
from seeupo.training.metrics import iteration_record
from seeupo.training.run import train
from seeupo.training.trackers import scalars
from seeupo.types import Trajectory, Turn

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", ".github/**/*.md") for path in ROOT.glob(pattern)
)
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*")
RENAMED = {"--samples", "evaluation.samples", "algorithm.measure_drift"}
"""Old names that pages may mention, because errors name their replacement."""
SHELL_OPERATORS = {">", ">>", "|", "&&", ";"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass
class Markdown:
    """A page in parts: its text without code, its code blocks by language, and its inline code."""

    prose: str = ""
    blocks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def inline_code(self) -> list[str]:
        return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", self.prose)

    @property
    def command_lines(self) -> Iterator[str]:
        """Lines of shell code, continuation lines joined."""
        for language, code in self.blocks:
            if language in ("", "sh", "bash", "console"):
                yield from code.replace("\\\n", " ").splitlines()

    @property
    def anchors(self) -> set[str]:
        """The anchors of the headings, as GitHub makes them."""
        found: set[str] = set()
        for heading in re.findall(r"^#+ +(.*?) *$", self.prose, re.MULTILINE):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            number = next(n for n in range(len(found) + 1) if (f"{slug}-{n}" if n else slug) not in found)
            found.add(f"{slug}-{number}" if number else slug)
        return found


def parse(page: Path) -> Markdown:
    result, fence, code, language = Markdown(), "", list[str](), ""
    prose: list[str] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        opening = re.match(r"\s*(```+)(\w*)", line)
        if fence:
            if opening and opening[1] == fence:
                result.blocks.append((language, "\n".join(code)))
                fence, code = "", []
            else:
                code.append(line)
        elif opening:
            fence, language = opening[1], opening[2]
        elif line.startswith("    ") and (code or not prose or not prose[-1].strip()):
            code.append(line.strip())
        else:
            if code:
                result.blocks.append(("", "\n".join(code)))
                code = []
            prose.append(line)
    result.prose = "\n".join(prose)
    return result


@each_page
def test_relative_links_and_anchors_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", parse(page).prose):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in parse(file).anchors, target


# Commands.


def words_of(line: str) -> list[str]:
    """The words of a shell line up to the first operator, without comments and ellipses."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose in a code block
        return []
    end = next((place for place, word in enumerate(words) if word in SHELL_OPERATORS), len(words))
    return [word for word in words[:end] if word not in ("...", "$")]


def seeupo_commands(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        match = re.search(r"(?:^|\s{2,})(?:\S*/)?(?:python -m )?(seeupo\s.*|seeupo$)", line)
        if match and not line.lstrip().startswith("#") and (words := words_of(match[1])):
            yield words[1:]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and its arguments."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        subcommand = command.get_command(click.Context(command), words[0])
        assert subcommand is not None, f"there is no command {words[0]!r}"
        command, words = subcommand, words[1:]
    return command, words


def names_defined_on(page: Path) -> set[str]:
    """Algorithms and environments that the page itself defines as examples."""
    text = page.read_text(encoding="utf-8")
    return {
        name for names in re.findall(r'ALGORITHMS\["(\w+)"\]|EnvSpec\(name="(\w+)"', text) for name in names if name
    }


def check_name(name: str | None, known: typing.Iterable[str], page: Path) -> None:
    if name is not None and not PLACEHOLDER.fullmatch(name):
        assert name in {*known, *names_defined_on(page)}, name


def check_environment(name: str | None, page: Path) -> None:
    """A name, or the factory of a custom environment of the reader."""
    if name is not None and not re.fullmatch(r"[\w./]+:\w+Factory", name):
        check_name(name, environment_names(), page)


def check_model(name: str | None) -> None:
    if name is not None and "/" not in name:
        check_name(name, ["tiny", *CATALOG], ROOT / "README.md")


def check_recipe(name: str | None, overrides: list[tuple[str, str]], page: Path) -> None:
    shipped = name is not None and not PLACEHOLDER.fullmatch(name) and not name.endswith(".toml")
    if shipped:
        assert name in recipe_names(), name
    algorithm = dict(overrides).get("algorithm.name")
    check_name(algorithm, ALGORITHMS, page)
    check_environment(dict(overrides).get("environment.name"), page)
    check_model(dict(overrides).get("model.name"))
    if algorithm is None or algorithm in ALGORITHMS:
        read_recipe(name if shipped else "tiny-pocket", overrides)


@each_page
def test_commands_parse(page):
    for words in seeupo_commands(parse(page).command_lines):
        command, arguments = resolve(list(words))
        if isinstance(command, click.Group) or {"-h", "--help", "--version"} & set(arguments):
            continue
        try:
            found = command.make_context(
                command.name, list(arguments), parent=click.Context(main, **main.context_settings)
            ).params
        except click.ClickException as error:
            pytest.fail(f"seeupo {' '.join(words)}: {error.format_message()}")
        path = " ".join(words[: len(words) - len(arguments)])
        if path in ("train", "plan"):
            overrides = list(found["overrides"])
            if (recipe := found["recipe"]) is not None and recipe.startswith("--"):
                recipe, overrides = None, [recipe, *overrides]
            pairs = parse_overrides(overrides)
            check_recipe(recipe, pairs, page)
            if found.get("resumed") is not None:
                accepted = found["accept_changes"]
                check_changes([Change(key, 0, 1) for key, _ in pairs], typed=dict(pairs), accepted=accepted)
        elif path in ("recipes show", "study reliability"):
            check_name(found.get("name") or found.get("recipe"), recipe_names(), page)
        elif path in ("compare", "algorithms show"):
            check_name(found.get("study") or found["name"], study_names() if path == "compare" else ALGORITHMS, page)
        elif path.startswith("envs ") and path != "envs new" and "name" in found:
            check_environment(found["name"], page)
        elif path.startswith("models ") and "name" in found:
            check_model(found["name"])
        for option in ("env", "environment"):
            check_environment(found.get(option), page)


@each_page
def test_make_targets_and_scripts_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in parse(page).command_lines:
        words = words_of(line)
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= targets, line
        if len(words) > 1 and re.fullmatch(r"(\S*/)?python3?", words[0]) and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), line


def all_options() -> set[str]:
    def walk(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        if isinstance(command, click.Group):
            for subcommand in command.commands.values():
                yield from walk(subcommand)

    return {*walk(main), "--help", "--version"}


@each_page
def test_commands_and_options_in_text_exist(page):
    for code in parse(page).inline_code:
        words = words_of(code)
        if words[:1] == ["seeupo"]:
            command, arguments = resolve([word.partition("|")[0] for word in words[1:]])
            options = {name for parameter in command.params for name in parameter.opts} | {"--help", "--version"}
            named = {word.partition("=")[0] for word in arguments if word.startswith("--")}
            assert {name for name in named if "." not in name and name[2:] not in SECTIONS} <= options, code
        if words and words[0].startswith("--") and "." not in words[0] and words[0][2:] not in SECTIONS:
            assert words[0].partition("=")[0] in all_options() | RENAMED, code


# Keys of recipes.

SECTIONS = {each.name: typing.get_type_hints(Recipe)[each.name] for each in dataclasses.fields(Recipe)}


def key_exists(path: list[str], kind: object) -> bool:
    """Whether a dotted key leads to a field of a section, or into a free table."""
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return any(key_exists(path, each) for each in typing.get_args(kind))
    if not path or typing.get_origin(kind) in (Mapping, dict):
        return True
    if not dataclasses.is_dataclass(kind):
        return False
    hints = typing.get_type_hints(kind)
    return path[0] in hints and key_exists(path[1:], hints[path[0]])


def recipe_key_exists(key: str) -> bool:
    section, *rest = key.split(".")
    if section == "algorithm":
        return rest == ["name"] or any(key_exists(rest, algorithm) for algorithm in ALGORITHMS.values())
    return key_exists(rest, SECTIONS[section])


@each_page
def test_recipe_keys_in_text_exist(page):
    for code in parse(page).inline_code:
        match = re.match(rf"(?:--)?((?:{'|'.join(SECTIONS)})(?:\.[a-z_0-9]+)+)(?![\w.(/])", code)
        if match and Path(match[1]).suffix not in (".md", ".py", ".safetensors"):
            assert recipe_key_exists(match[1]) or match[1] in documented_metrics("iteration") | RENAMED, code


# Python.


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@each_page
def test_python_snippets_compile_and_their_imports_exist(page):
    for language, code in parse(page).blocks:
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "seeupo":
                for alias in node.names:
                    assert resolves(f"{node.module}.{alias.name}"), f"{node.module}.{alias.name}"


@each_page
def test_python_names_and_files_in_text_exist(page):
    for code in parse(page).inline_code:
        if match := re.fullmatch(r"(seeupo(?:\.\w+)+)(?:\(.*\))?", code):
            assert resolves(match[1]), code
        if match := re.fullmatch(r"((?:src/seeupo|tests|examples|benchmarks|[a-z_]+)/[\w/]+\.py)(?: .*)?", code):
            exists = any((place / match[1]).is_file() for place in (ROOT, ROOT / "src/seeupo"))
            assert exists or Path(match[1]).stem in names_defined_on(page), code


# Names that a page must list.


def test_readme_lists_every_algorithm():
    page = (ROOT / "README.md").read_text()
    assert re.findall(r"^\| \[`(\w+)`\]\(docs/algorithms/", page, re.MULTILINE) == list(ALGORITHMS)


def test_environments_page_lists_every_environment():
    page = (ROOT / "docs/environments/README.md").read_text()
    assert {name for name in environment_names() if f"`{name}`" not in page} == set()


# Metrics.


def documented_metrics(kind: str) -> set[str]:
    """The metrics in the first column of the tables of a kind of record."""
    sections = re.split(r"^## ", (ROOT / "docs/reference/metrics.md").read_text(), flags=re.MULTILINE)
    (section,) = (text for text in sections if f"(`kind` is `{kind}`)" in text.partition("\n")[0])
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def written_metrics(record: Mapping[str, object]) -> set[str]:
    """The metrics of a record, named as in docs/reference/metrics.md."""
    found = set()
    for name, value in record.items():
        if name in ("algorithm", "timings"):
            found |= {f"{name}.{key}" for key in value}
        elif name == "turns" and isinstance(value, list):
            found |= {key for turn in value for key in turn}
        else:
            found.add(re.sub(r"@\d+$", "@k", name))
    return found - {"kind"}


@pytest.fixture(scope="module")
def records_of_a_run(tmp_path_factory) -> list[dict[str, object]]:
    recipe = read_recipe(
        "tiny-pocket",
        [
            ("run.iterations", "1"),
            ("model.tiny.width", "16"),
            ("model.tiny.heads", "2"),
            ("collect.tasks", "2"),
            ("collect.group_size", "2"),
            ("evaluation.tasks", "4"),
            ("warm_start.batches", "1"),
            ("warm_start.episodes", "4"),
            ("warm_start.batch_episodes", "2"),
        ],
    )
    result = train(recipe, run_dir=tmp_path_factory.mktemp("run") / "run")
    return RunDirectory.open(result.run_dir).metrics()


def record_of_an_update(algorithm: str) -> dict[str, object]:
    """The record of an iteration on made-up trajectories, with a KL term where the algorithm has one."""

    def trajectory(group: str, number: int) -> Trajectory:
        name = f"{group}-{number}"
        turns = tuple(Turn(name, index, (1, 2, 3 + index), (4 + number, 5), (-1.0, -1.0)) for index in range(2))
        return Trajectory(name, group, group, turns, reward=float(number % 2), score=float(number % 2))

    kind = ALGORITHMS[algorithm]
    settings = {"kl_coef": 0.1, "trust_region": TrustRegionSettings()}
    names = {each.name for each in dataclasses.fields(kind)}
    options = {name: value for name, value in settings.items() if name in names}
    policy = load_policy("tiny", tiny=TinyConfig(width=16, layers=1, heads=2, context=32))
    engine = LocalEngine(policy, OptimizerSettings(), critic=CriticSettings(), reference=True)
    collected = Collected(groups={group: tuple(trajectory(group, n) for n in range(4)) for group in ("a", "b")})
    update = kind(**options).update(engine, collected.trajectories, generator=torch.Generator().manual_seed(0))
    kinds = {"a": "a", "b": "b"}
    timings = {"collect": 1.0, "update": 1.0}
    mismatch = {"importance_weight": 1.0, "masked_turns": 0.0}
    return iteration_record(
        1, collected, update, kinds, gap=0.0, mismatch=mismatch, update_tokens=0, learning_rate=0.0, timings=timings
    )


def test_every_metric_of_a_run_is_documented(records_of_a_run):
    assert {record["kind"] for record in records_of_a_run} == {"warm_start", "iteration", "evaluation"}
    for record in records_of_a_run:
        assert written_metrics(record) - documented_metrics(record["kind"]) - {"iteration"} == set(), record["kind"]


def test_names_of_metrics_in_tensorboard_exist(records_of_a_run):
    page = (ROOT / "docs/reference/metrics.md").read_text()
    section = page.partition("## Names in TensorBoard")[2].partition("\n## ")[0]
    examples = [row.rsplit("|", 2)[1] for row in section.splitlines() if row.startswith("| ")][2:]
    documented = {name for cell in examples for name in re.findall(r"`([^`]+)`", cell)}
    written = set().union(*map(scalars, [*records_of_a_run, record_of_an_update("seeupo")]))
    varying = re.compile(r"/t\d+$|(?<=/stops)/\w+$")  # the turns and stop reasons that a run has
    assert documented
    assert {varying.sub("", name) for name in documented} <= {varying.sub("", name) for name in written}


def test_every_metric_of_every_algorithm_is_documented_and_every_documented_metric_exists(records_of_a_run):
    written = {name: written_metrics(record_of_an_update(name)) for name in ALGORITHMS}
    for algorithm, found in written.items():
        assert found - documented_metrics("iteration") - {"iteration"} == set(), algorithm
    of_run = [written_metrics(record) for record in records_of_a_run if record["kind"] == "iteration"]
    assert documented_metrics("iteration") - set().union(*written.values(), *of_run) == set()
    for kind in ("warm_start", "evaluation"):
        of_kind = [written_metrics(record) for record in records_of_a_run if record["kind"] == kind]
        assert documented_metrics(kind) - set().union(*of_kind) == set(), kind


# Tables that the package generates.


def test_results_tables_are_generated_from_their_files():
    page = (ROOT / "docs/results/recipes.md").read_text().splitlines()
    rows = list(reliability.markdown(json.loads((ROOT / "docs/results/tiny-pocket.json").read_text())))[2:]
    start = page.index(rows[0])
    assert page[start : start + len(rows)] == rows
    assert not page[start + len(rows)].startswith("|")


@pytest.fixture
def script():
    """The script that makes the table of BFCL."""
    specification = importlib.util.spec_from_file_location("bfcl_results", ROOT / "benchmarks/bfcl_results.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def training_successes(folder):
    """Yield the training success of both algorithms by iteration, as on the page."""
    for name, label in (("seeupo", "SeeUPO"), ("grpo", "GRPO")):
        records = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
        successes = [f"{record['success']:.2f}" for record in records if record["kind"] == "iteration"]
        yield f"{label} {', '.join(successes)}"


@pytest.mark.parametrize("name", ["trading-warm-start", "end-at-mistake"])
def test_tables_and_figures_of_later_runs_on_bfcl_are_those_of_their_files(script, name):
    folder, page = ROOT / "docs/results/smollm2-bfcl" / name, (ROOT / "docs/results/recipes.md").read_text()
    assert "\n".join(script.table(json.loads((folder / "results.json").read_text()))) in page
    assert "; ".join(training_successes(folder)) in page
    prose = " ".join(page.split())
    summaries = [json.loads((folder / name / "summary.json").read_text()) for name in ("seeupo", "grpo")]
    seeupo, grpo = (summary["optimizer_steps"] for summary in summaries)
    assert f"{seeupo} optimizer steps of SeeUPO and {grpo} of GRPO" in prose
    seeupo, grpo = ((summary["seconds"]["collect"] + summary["seconds"]["update"]) / 60 for summary in summaries)
    minutes = f"{seeupo:.0f} minutes of SeeUPO and {grpo:.0f} of GRPO without evaluations ({seeupo / grpo:.1f} times)"
    assert minutes in prose
    records = [
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("seeupo", "grpo")
    ]
    seeupo, grpo = ([each for each in found if each["kind"] == "iteration"] for found in records)
    assert f"Episodes have {np.mean([each['mean_turns'] for each in seeupo]):.1f} model turns on average" in prose
    (early, late), (first, last) = (
        [np.mean([each["success"] for each in half]) for half in np.array_split(np.array(found), 2)]
        for found in (seeupo, grpo)
    )
    assert f"iterations and {late:.2f} in the last" in prose
    assert f"Training success is {early:.2f} in the first" in prose
    assert f"with SeeUPO, and {first:.2f} and {last:.2f} with GRPO, on the same tasks" in prose


def test_pooled_change_on_bfcl_is_that_of_its_files(script):
    folder, before, after = ROOT / "docs/results/smollm2-bfcl", {}, {}
    for scores, names in ((before, ["warm-start"]), (after, ["seeupo", "grpo"])):
        for file in (folder / part / f"{name}.json" for part in ("", "end-at-mistake") for name in names):
            for result in Evaluation.read(file).results.values():
                scores.setdefault(result.task, []).append(result.score)
    change = paired_difference([after[task] for task in sorted(after)], [before[task] for task in sorted(before)])
    text = script.interval(script.as_json(change), sign="+")
    assert f"changes avg@4 by {text}" in (ROOT / "docs/results/recipes.md").read_text()


def test_table_of_bfcl_is_generated_from_its_files(script):
    folder = ROOT / "docs/results/smollm2-bfcl"
    stages = json.loads((folder / "results.json").read_text())
    page = (ROOT / "docs/results/recipes.md").read_text()
    assert "\n".join(script.table(stages)) in page
    files = ("untrained", "warm-start-all-apps")
    untrained, all_apps = (Evaluation.read(folder / f"{name}.json").summary() for name in files)
    assert f"avg@4 is {script.interval(untrained['avg@4'])}" in page
    assert f"{script.interval(all_apps['avg@4'])} and pass@4 {script.interval(all_apps['pass@4'])}" in page

    assert all(successes in page for successes in training_successes(folder))
    warm_start = Evaluation.read(folder / "warm-start.json")
    for name, stage in stages.items():
        evaluation = Evaluation.read(folder / f"{name.replace(' ', '-')}.json")
        assert {score: stage["scores"][score] for score in script.SCORES} == {
            score: evaluation.summary()[score] for score in script.SCORES
        }
        if name != "warm start":
            difference = compare(warm_start, evaluation)
            assert all(stage["difference"][score] == difference[score] for score in script.SCORES)
    versus = compare(*(Evaluation.read(folder / f"{name}.json") for name in ("seeupo", "grpo")))
    assert f"GRPO against SeeUPO: avg@4 {script.interval(versus['avg@4'], sign='+')}" in page
    for earlier in ("six-iterations", "stopped-early"):
        results = json.loads((folder / earlier / "results.json").read_text())
        for name in ("seeupo", "grpo"):
            assert script.interval(results[name]["difference"]["avg@4"], sign="+") in page


def test_scores_of_bfcl_on_training_tasks_and_without_sampling_are_those_of_their_files(script):
    folder, page = ROOT / "docs/results/smollm2-bfcl", (ROOT / "docs/results/recipes.md").read_text()
    stages = ("warm-start", "seeupo", "grpo")
    training, greedy = (
        [Evaluation.read(folder / f"{kind}-{name}.json") for name in stages] for kind in ("training-tasks", "greedy")
    )
    for k, runs, label in ((4, training, "training tasks, avg@4"), (1, greedy, "held-out tasks, greedy")):
        cells = [script.interval(run.summary()[f"avg@{k}"]) for run in runs]
        assert script.row(label, cells) in page
        differences = [script.interval(compare(runs[0], run)[f"avg@{k}"], sign="+") for run in runs[1:]]
        assert script.row(f"{label}, difference to the warm start", ["", *differences]) in page


@pytest.mark.parametrize("seed", [1, 2])
def test_scores_of_seeupo_and_grpo_with_a_pretrained_model_are_those_of_their_files(script, seed):
    folder = ROOT / "docs/results/compare-smollm2-pocket/evaluations"
    runs = [Evaluation.read(folder / f"{name}-{seed}.json") for name in ("warm-start", "seeupo", "grpo")]
    cells = [script.interval(run.summary()["avg@4"]) for run in runs]
    difference = script.interval(compare(*runs[1:])["avg@4"], sign="+")
    assert f"| {seed} | {' | '.join(cells)} | {difference} |" in (ROOT / "docs/results/recipes.md").read_text()


def test_textworld_trials_in_the_prose_have_the_values_of_their_file():
    page = (ROOT / "docs/results/recipes.md").read_text()
    trials = json.loads((ROOT / "docs/results/textworld/trials.json").read_text())
    assert len(trials) == 8
    for trial in trials:
        success, entropy, dead = trial["success"], trial["entropy"], np.mean(trial["dead_groups"]) / trial["groups"]
        scores = f"{np.mean(success[:5]):.2f}, {np.mean(success[-5:]):.2f}"
        assert f"| {scores} | {dead:.0%} | {entropy[0]:.1f}, {entropy[-1]:.1f} |" in page


@pytest.mark.parametrize("file", sorted((ROOT / "docs/results").glob("*/comparison.json")), ids=lambda f: f.parent.name)
def test_overviews_of_studies_are_generated_from_their_files(file):
    page = (ROOT / "docs/results/studies.md").read_text()
    table = json.loads(file.read_text())
    assert "\n".join(overview(table)) in page
    assert file.with_suffix(".md").read_text() == "\n".join(markdown(table)) + "\n"


def reward_aucs(study):
    """Return the reward AUC of each arm of a study: its interquartile mean, and the value of each run."""
    arms = json.loads((ROOT / "docs/results" / study / "comparison.json").read_text())["arms"]
    return {arm["name"]: (arm["metrics"]["reward_auc"]["value"], arm["metrics"]["reward_auc"]["runs"]) for arm in arms}


def test_the_answer_in_the_results_has_the_values_of_the_studies():
    page = (ROOT / "docs/results/README.md").read_text()
    normal, deceptive = reward_aucs("main-normal"), reward_aucs("main-deceptive")
    for label, arm in (("PPO", "ppo"), ("GRPO", "grpo"), ("GSPO", "gspo"), ("SeeUPO", "seeupo")):
        (row,) = re.findall(rf"^\| {label} \|.*$", page, flags=re.MULTILINE)
        assert re.findall(r"0\.\d{3}", row)[:2] == [f"{normal[arm][0]:.3f}", f"{deceptive[arm][0]:.3f}"]
    assert f"product ratios {deceptive['seeupo-product'][0]:.3f}" in page


def signed(interval):
    """Yield a difference and its negative as text, with and without plus signs."""
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    for numbers in ((value, low, high), (-value, -high, -low)):
        for sign in ("", "+"):
            center, *bounds = (f"{number:{sign}.3f}" for number in numbers)
            yield f"{center} [{', '.join(bounds)}]"


def effect_of_m():
    """Return the mean effect of M in study (b) over its three pairs of arms, with its interval over seeds."""
    runs = {arm: values for arm, (_, values) in reward_aucs("seeupo-ablations").items()}
    pairs = [("seeupo", "no-carry"), ("product", "product-no-carry"), ("upper-layer", "upper-layer-no-carry")]
    effects = [
        sum(on - off for on, off in seed) / 3
        for seed in zip(*(zip(runs[on], runs[off], strict=True) for on, off in pairs), strict=True)
    ]
    return mean_of_runs(np.array(effects))._asdict()


EFFECTS_OF_M = {
    "deceptive, product ratios, own rates, thirty seeds": ("carry", "seeupo", "no-carry"),
    "deceptive, product ratios, own rates": ("control-product", "seeupo-product", "no-carry-product"),
    "deceptive, product ratios, rate of M": ("credit", "seeupo", "no-carry"),
    "deceptive, product ratios, one rate": ("seeupo-ablations", "product", "product-no-carry"),
    "deceptive, product ratios, one rate, upper layer": ("seeupo-ablations", "upper-layer", "upper-layer-no-carry"),
    "deceptive, length-normalized, own rates": ("control", "seeupo", "no-carry"),
    "deceptive, length-normalized, one rate": ("seeupo-ablations", "seeupo", "no-carry"),
    "normal, 3 calls": ("turns-3", "seeupo", "no-carry"),
    "normal, 5 calls": ("turns-5", "seeupo", "no-carry"),
    "normal, 8 calls": ("turns-8", "seeupo", "no-carry"),
    "normal, early decision": ("position-early", "seeupo", "no-carry"),
    "normal, late decision": ("position-late", "seeupo", "no-carry"),
    "textworld, own rates": ("compare-textworld", "seeupo", "no-carry"),
}


@pytest.mark.parametrize("label", EFFECTS_OF_M)
def test_the_effects_of_m_in_the_results_are_those_of_the_runs(label):
    study, on, off = EFFECTS_OF_M[label]
    runs = {arm: np.array(values) for arm, (_, values) in reward_aucs(study).items()}
    effect = interval_text(mean_of_runs(runs[on] - runs[off])._asdict(), signed=True)
    above = f"{(runs[on] > runs[off]).sum()} of {len(runs[on])}"
    row = f"| {label} | {effect} | {above} | {p_value(runs[on], runs[off]):.3f} |"
    assert row in (ROOT / "docs/results/README.md").read_text()


def test_every_interval_in_the_prose_of_the_studies_is_in_a_file():
    tables = [json.loads(file.read_text()) for file in (ROOT / "docs/results").glob("*/comparison.json")]
    arms = [arm for table in tables for arm in table["comparisons"]]
    known = {text for arm in arms for each in arm["metrics"].values() for text in signed(each["difference"])}
    known |= set(signed(effect_of_m()))
    for page in ("README.md", "studies.md"):
        lines = (ROOT / "docs/results" / page).read_text().splitlines()
        prose = "\n".join(line for line in lines if not line.startswith("| "))
        found = re.findall(r"[+-]?0\.\d{3} \[[+-]?0\.\d{3}, [+-]?0\.\d{3}\]", prose)
        assert found
        assert set(found) <= known, page


def test_seeds_that_decide_study_carry_are_those_of_the_runs():
    page = (ROOT / "docs/results/studies.md").read_text()
    runs = {arm: np.array(values) for arm, (_, values) in reward_aucs("carry").items()}
    seeupo, without, rloo = (runs[name] for name in ("seeupo", "no-carry", "rloo"))
    assert not ((without > 0.5) & (seeupo <= 0.5)).any()
    only = int(((seeupo > 0.5) & (without <= 0.5)).sum())
    assert only == 6
    assert f"six seeds make the difference (sign test p = {2 * 0.5**only:.2f})" in page
    ahead = (without - seeupo)[without > seeupo]
    assert f"ahead on {len(ahead)} seeds, by at most {ahead.max():.3f}" in page
    assert f"RLOO is ahead on {(rloo > seeupo).sum()} of 30 seeds" in page
    assert ((seeupo > 0.5) & (rloo <= 0.5)).sum() == 4
    assert not ((rloo > 0.5) & (seeupo <= 0.5)).any()


def test_the_hours_of_all_studies_are_those_of_their_files():
    tables = [json.loads(file.read_text()) for file in (ROOT / "docs/results").glob("*/comparison.json")]
    hours = sum(table["time"]["hours"] for table in tables)
    assert f"All together are {hours:.0f} hours of one core" in (ROOT / "docs/results/README.md").read_text()


def sign_flip_p(differences):
    """Return the two-sided p of a mean difference under all changes of the signs of the differences."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return float((abs((signs * differences).mean(1)) >= abs(np.mean(differences)) - 1e-12).mean())


def test_p_values_of_the_sign_flip_tests_in_the_prose_are_those_of_the_runs():
    page = (ROOT / "docs/results/studies.md").read_text()
    runs = {arm: np.array(values) for arm, (_, values) in reward_aucs("main-deceptive").items()}
    raw = {arm: sign_flip_p(values - runs["seeupo"]) for arm, values in runs.items() if arm != "seeupo"}
    by_arm = dict(zip(raw, holm(list(raw.values())), strict=True))
    assert f"(p = {by_arm['grpo']:.2f} and {by_arm['rloo']:.2f} after correction)" in page
    product = {arm: np.array(values) for arm, (_, values) in reward_aucs("control-product").items()}
    flipped = 4 * sign_flip_p(product["no-carry-product"] - product["seeupo-product"])  # the smallest of four
    (planned,) = (  # corrected for two comparisons
        each["metrics"]["reward_auc"]["p"]
        for each in json.loads((ROOT / "docs/results/control-product/comparison.json").read_text())["comparisons"]
        if each["arm"] == "no-carry-product"
    )
    assert f"p is {2 * planned:.3f} by the planned t test, and {flipped:.3f} by a sign-flip test" in page


ESCAPED = {
    "main-deceptive": "SeeUPO with product ratios {seeupo-product}, SeeUPO {seeupo}, RLOO {rloo}, Dr. GRPO {dr-grpo}, "
    "GRPO {grpo}, GSPO per turn {gspo-turn}, PPO {ppo}, turn-level PPO {ppo-turn}, GSPO {gspo}, REINFORCE++ "
    "{reinforce-pp}, GiGPO {gigpo}",
    "credit": "{seeupo} escaped with M (reward AUC above 0.5), {no-carry} without it, {shuffled} with permuted "
    "multipliers, {natural} in natural order, {grpo} of GRPO and {rloo} of RLOO",
    "carry": "of thirty: {seeupo} with M, {no-carry} without it, {rloo} of RLOO",
}


@pytest.mark.parametrize("study", ESCAPED)
def test_the_counts_of_runs_that_escaped_the_trap_are_those_of_the_studies(study):
    counts = {arm: sum(value > 0.5 for value in runs) for arm, (_, runs) in reward_aucs(study).items()}
    assert ESCAPED[study].format(**counts) in (ROOT / "docs/results/studies.md").read_text()


def test_the_first_iterations_of_seeds_without_an_escape_are_those_of_the_runs():
    runs = [json.loads(file.read_text()) for file in (ROOT / "docs/results/credit/runs").iterdir()]
    escaped = {run["seed"] for run in runs if np.mean(run["rewards"]) > 0.5}
    shares = {True: [], False: []}
    for run in runs:
        if run["arm"] == "seeupo":
            declined = (run["rewards"][0] - run["successes"][0]) / 0.45  # the reward of declining
            shares[run["seed"] in escaped].append((1 - declined, run["successes"][0]))
    (stuck, lost), (free, won) = (np.transpose(shares[each]) for each in (False, True))
    assert len(stuck) == 5
    ranges = [f"{each.min():.0%}".rstrip("%") + f" to {each.max():.0%}" for each in (stuck, free)]
    assert (
        f"In the first iteration, {ranges[0]} of their episodes did not decline, as many as on the other seeds "
        f"({ranges[1]}), but fewer succeeded: {lost.mean():.1%} instead of {won.mean():.1%} on average."
    ) in (ROOT / "docs/results/studies.md").read_text()


def test_the_iterations_until_lookups_are_learned_are_those_of_the_runs():
    runs = [json.loads(file.read_text()) for file in (ROOT / "docs/results/step-rewards/runs").iterdir()]
    earned, learned = set(), dict[str, set[int]]()
    for run in runs:
        if run["seed"] >= 10:
            steps = np.subtract(run["rewards"], run["successes"])
            earned.add(f"{steps[0]:.3f}")
            learned.setdefault(run["arm"], set()).add(int(np.argmax(steps >= 0.09)) + 1)
    spans = {arm: (min(found), max(found)) for arm, found in learned.items()}
    assert spans == {"seeupo": (4, 7), "grpo": (6, 8), "mt-grpo": (6, 9), "gigpo": (6, 9), "ppo-turn": (4, 5)}
    page = (ROOT / "docs/results/studies.md").read_text()
    assert f"episodes earn {min(earned)} to {max(earned)} of the 0.1" in page
    assert (
        "after 4 to 7 iterations with SeeUPO, 6 to 8 with GRPO, 6 to 9 with MT-GRPO and GiGPO, and 4 or 5 with" in page
    )


def test_threats_name_existing_tests():
    rows = re.findall(r"`(tests/\S+\.py): (test_\w+)`", (ROOT / "docs/explanation/security.md").read_text())
    assert rows
    for file, test in rows:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}: {test}"
