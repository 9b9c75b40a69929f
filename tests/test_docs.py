"""The documentation agrees with the code: links, commands, options, names, Python snippets, metrics and tables."""

import ast
import dataclasses
import importlib
import re
import shlex
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType

import click
import pytest
import torch

from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.cli import main
from seeupo.cli.recipe_arguments import parse_overrides
from seeupo.comparison.study_file import study_names
from seeupo.config.changes import Change, check_changes
from seeupo.config.loader import read_recipe, recipe_names
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings
from seeupo.config.schema import Recipe
from seeupo.engines.local import LocalEngine
from seeupo.envs.registry import names as environment_names
from seeupo.models.catalog import CATALOG
from seeupo.models.loading import load_policy
from seeupo.rollout.collector import Collected
from seeupo.runs.run_directory import RunDirectory
from seeupo.training.metrics import iteration_record
from seeupo.training.run import train
from seeupo.training.trackers import scalars
from seeupo.types import Behavior, Trajectory, Turn

ROOT = Path(__file__).parent.parent
FOLDERS = ("*.md", "docs/**/*.md", "studies/**/*.md", "benchmarks/*.md", "tests/*.md", ".github/**/*.md")
PAGES = sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern))
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*")
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


# Size and form.

GENERATED = {ROOT / "docs/reference/configuration.md"}
USER_PAGES = [page for page in PAGES if page.is_relative_to(ROOT / "docs") or page == ROOT / "README.md"]
HAND_WRITTEN = [page for page in USER_PAGES if page not in GENERATED]
PARTS = ("Tutorials", "How-to guides", "Reference", "Explanation")


def words_in(text: str) -> int:
    """Count what contains a letter or a digit; the bars of a table are no words."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_read_in_five_minutes(page):
    count = words_in(parse(page).prose)
    assert count <= 1200, f"{count} words without code blocks: split the page, or link instead of repeating"


def test_the_documentation_has_at_most_35000_words():
    assert sum(words_in(page.read_text()) for page in HAND_WRITTEN) <= 35_000


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_120_columns(page):
    long = [line for line in parse(page).prose.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]
    assert not long


@each_page
def test_no_page_contains_a_path_of_a_machine(page):
    found = re.findall(r"(?:/home/(?!me/)|/root/|/Users/|/work/|/tmp/)[\w./-]*", page.read_text(encoding="utf-8"))
    assert not found


def test_the_index_lists_every_page_in_one_of_four_parts():
    index = ROOT / "docs/README.md"
    parts = re.findall(r"^## (.+?):", index.read_text(), re.MULTILINE)
    assert parts == list(PARTS)
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = {page.resolve() for page in USER_PAGES} - {index.resolve(), (ROOT / "README.md").resolve()}
    assert {str(page.relative_to(ROOT.resolve())) for page in pages - linked} == set()


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
        elif path == "recipes show":
            check_name(found.get("name"), recipe_names(), page)
        elif path == "compare":
            shipped = not found["study"].endswith(".toml")
            assert found["study"] in study_names() if shipped else (ROOT / found["study"]).is_file(), words
        elif path == "algorithms show":
            check_name(found["name"], ALGORITHMS, page)
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
            assert words[0].partition("=")[0] in all_options(), code


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
            assert recipe_key_exists(match[1]) or match[1] in documented_metrics("iteration"), code


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


def test_contributing_lists_the_packages_in_the_order_of_their_layers():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    packages = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert packages == re.findall(r"seeupo\.(\w+)", " ".join(contracts[0]["layers"]))


# Metrics.


def documented_metrics(kind: str) -> set[str]:
    """The metrics in the first column of the tables of a kind of record."""
    pages = [ROOT / "docs/reference" / name for name in ("metrics.md", "update-metrics.md")]
    sections = [section for page in pages for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)]
    named = [text for text in sections if f"(`kind` is `{kind}`" in text.partition("\n")[0]]
    rows = [row for text in named for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)]
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
    update = kind(**options).update(
        engine, collected.trajectories, generator=torch.Generator().manual_seed(0), behavior=Behavior(tis_cap=2.0)
    )
    kinds = {"a": "a", "b": "b"}
    timings = {"collect": 1.0, "update": 1.0}
    return iteration_record(1, collected, update, kinds, gap=0.0, update_tokens=0, learning_rate=0.0, timings=timings)


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


# Threats.


def test_threats_name_existing_tests():
    rows = re.findall(r"`(tests/\S+\.py): (test_\w+)`", (ROOT / "tests/THREATS.md").read_text())
    assert rows
    for file, test in rows:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}: {test}"


def test_the_page_of_one_iteration_names_functions_that_exist():
    text = (ROOT / "docs/explanation/iteration.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/]+)\.py:([\w.]+)`", text)
    assert len(names) > 20
    for path, name in names:
        value = importlib.import_module(f"seeupo.{path.replace('/', '.')}")
        for part in name.split("."):
            value = getattr(value, part)
