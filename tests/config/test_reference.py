import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

from seeupo.algorithms import ALGORITHMS
from seeupo.config.keys import attributes, keys_of, summary
from seeupo.config.loader import read_recipe
from seeupo.config.model_settings import ModelSettings
from seeupo.config.option_types import PositiveInt
from seeupo.config.reference import NAMES, reference, takes_text, text_keys
from seeupo.config.schema import AgentSettings, Recipe, RunSettings
from seeupo.config.toml import toml
from seeupo.envs.declare import Role
from seeupo.envs.references import resolve
from seeupo.envs.registry import SPECS
from seeupo.errors import ConfigError

PAGE = Path(__file__).parent.parent.parent / "docs/reference/configuration.md"


@dataclass(frozen=True, kw_only=True)
class Documented:
    """A summary
    on two lines.

    More text.

    Attributes:
        first: One line.
        second, third: One line: and
            another.

    The end of the attributes.
        fourth: Not an attribute.
    """

    first: int = 1
    second: int = 2
    third: int = 3
    fourth: int = 4


@dataclass
class Bare:
    first: int = 1


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the table under a heading, by key."""
    _, _, rest = page.partition(f"\n{heading}\n")
    section = re.split(r"\n#+ ", rest)[0]
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in found}


def test_page_is_up_to_date():
    fresh = PAGE.read_text(encoding="utf-8") == reference()
    assert fresh, "run: python -m seeupo.config.reference > docs/reference/configuration.md"


def test_page_shows_the_problems_of_its_example(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", reference(), re.DOTALL)
    (problems,) = re.findall(r"```text\n(.*?)\n```", reference(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    with pytest.raises(ConfigError) as caught:
        read_recipe(str(tmp_path / "mine.toml"))
    assert str(caught.value) == problems
    assert len(caught.value.problems) == 3


def test_overrides_on_the_page_are_valid(tmp_path):
    (tmp_path / "mine.toml").write_text("")
    lines = re.findall(r"^    seeupo train \S+ (.*)$", reference(), re.MULTILINE)
    pairs = [pair for line in lines for pair in re.findall(r"--(\S+) (?:'([^']*)'|(\S+))", line)]
    assert len(pairs) == 5
    read_recipe(str(tmp_path / "mine.toml"), [(key, quoted or bare) for key, quoted, bare in pairs])


def test_every_key_has_a_row():
    page = reference()
    for name, key in keys_of(Recipe).items():
        assert name in rows(page, "## Sections")
        section = ALGORITHMS["seeupo"] if name == "algorithm" else None
        for part in (section, *getattr(key.hint, "__args__", ()), key.hint if section is None else None):
            if part is not None and hasattr(part, "__dataclass_fields__"):
                heading = '### algorithm, name = "seeupo"' if name == "algorithm" else f"## {name}"
                wanted = [inner for inner, entry in keys_of(part).items() if entry.set_by is None]
                assert list(rows(page, heading)) == wanted
    assert list(rows(page, "### model.lora")) == ["rank", "alpha", "targets", "layers", "seed", "per_turn", "per_role"]
    assert "iterations" not in rows(page, "## optimizer")


def test_rows_have_type_default_and_meaning():
    page = reference()
    assert rows(page, "## agent")["max_turns"] == ["integer >= 1", "`10`", attributes(AgentSettings)["max_turns"]]
    assert rows(page, "## agent")["episode_seconds"][:2] == ['number >= 0 or "none"', '`"none"`']
    assert rows(page, "## run")["deterministic"][:2] == ["true or false", "`true`"]
    assert rows(page, "## collect")["reward"][:2] == ["string", '`"score"`']
    assert rows(page, "## warm_start")["mistakes"][:2] == ["table of numbers", "`{}`"]
    assert rows(page, "## optimizer")["trainable"][:2] == ["list of strings", "`[]`"]
    seeupo = rows(page, '### algorithm, name = "seeupo"')
    assert seeupo["clip"][:2] == ['list: number in [0, 1), number >= 0 or "none"', "`[0.2, 0.2]`"]
    assert "KL" in seeupo["kl_coef"][2]
    assert rows(page, "## Sections")["run"][2] == summary(RunSettings)


def test_meanings_are_read_from_docstrings():
    shared = "One line: and another."
    assert summary(Documented) == "A summary on two lines."
    assert attributes(Documented) == {"first": "One line.", "second": shared, "third": shared}
    assert summary(Bare) == ""
    assert attributes(Bare) == {}
    assert summary(int) == ""


def test_documented_attributes_are_fields():
    for section in (Recipe, AgentSettings, ModelSettings, *ALGORITHMS.values()):
        assert set(attributes(section)) <= set(keys_of(section))


def settings_of(recipe) -> dict[str, object]:
    """Return every nested section of a recipe by its dotted key."""
    found, pending = {}, [("", recipe)]
    while pending:
        prefix, section = pending.pop()
        for each in fields(section):
            value = getattr(section, each.name)
            if is_dataclass(value) and each.name != "made_by":
                found[f"{prefix}{each.name}"] = value
                pending.append((f"{prefix}{each.name}.", value))
    return found


def test_documented_defaults_are_those_that_apply():
    page, sections = reference(), settings_of(Recipe())
    assert rows(page, "### critic.optimizer")["learning_rate"][1] == "`1e-05`"
    for name in ("run", "model.tiny", "optimizer", "critic", "critic.optimizer"):
        heading = f"{'###' if '.' in name else '##'} {name}"
        for key, (_, default, _) in rows(page, heading).items():
            value = getattr(sections[name], key)
            shown = f"`{toml('none' if value is None else value)}`" if not is_dataclass(value) else "defaults below"
            assert default == shown


def test_a_key_of_a_section_leaves_the_defaults_of_its_other_keys():
    for name, section in settings_of(Recipe()).items():
        assert section == type(section)(), f"{name}: a table with one key would change the other defaults"
    assert Recipe.from_table({"critic": {"optimizer": {"warmup": 3}}}).critic.optimizer.learning_rate == 1e-5


def test_every_key_has_a_description_of_its_own():
    sections, _, _ = reference().partition("\n## What keys may name\n")
    for heading in re.findall(r"^#+ .*$", sections, re.MULTILINE):
        meanings = [cells[-1] for cells in rows(reference(), heading).values()]
        assert all(meanings), heading
        assert len(set(meanings)) == len(meanings), heading


def test_every_key_with_text_has_a_rule(monkeypatch):
    assert set(text_keys()) == set(NAMES)
    hosts = {key: rule for key, rule in NAMES.items() if key != "engine.address"}
    monkeypatch.setattr("seeupo.config.reference.NAMES", hosts)
    with pytest.raises(LookupError, match=r"engine\.address"):
        reference()


@dataclass(frozen=True)
class WithText:
    plain: str = ""
    optional: str | None = None
    several: tuple[str, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict)
    nested: tuple[tuple[int, str], ...] = ()
    choice: Literal["a", "b"] = "a"
    rates: Mapping[str, float] = field(default_factory=dict)
    number: PositiveInt | None = None


def test_text_is_found_in_every_type():
    assert text_keys(WithText, "x.") == ["x.plain", "x.optional", "x.several", "x.table", "x.nested"]


NOTHING_NAMED = {
    "bfcl": ("apps",),
    "gem": ("game",),
    "gymnasium": ("actions", "arguments", "id", "instructions"),  # an id that names a module is refused
}
"""Options that take text which names nothing outside of the environment."""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_option_with_text_of_an_environment_is_declared(spec):
    if spec.name == "bfcl":
        pytest.importorskip("bfcl_eval", reason="BFCL is not installed in this interpreter")
    factory = resolve(spec.factory, Role.FACTORY)
    hints = get_type_hints(factory.__init__)
    options = [name for name in inspect.signature(factory).parameters if takes_text(hints[name])]
    assert sorted(options) == sorted([*spec.code_options, *spec.file_options, *NOTHING_NAMED.get(spec.name, ())])
