"""Code that settings name runs only if the user trusts it, and only if it declares itself."""

import sys

import pytest

from envs.worlds import everywhere, needs_sandbox
from seeupo.config.loader import read_recipe
from seeupo.config.schema import Recipe
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.trust import TrustError, check_trust, named_code, strings_in, untrusted_code
from seeupo.errors import ConfigError, EnvError
from seeupo.evaluation.evaluate import evaluate
from seeupo.training.run import train

TRAP = """
from pathlib import Path
Path(__file__).with_name("ran").touch()

class Trap:
    splits = ("train", "test")
    def tasks(self, split): return []
    def make(self): raise RuntimeError
    def expert(self, task): return None

def reset_all(*_): Path(__file__).with_name("called").touch()
"""
ENV = """
import os
from seeupo.types import Message, StepResult, Task

class Env:
    def reset(self, task, *, seed):
        return StepResult((Message("user", os.environ.get("SECRET_TOKEN", "no token")),))
    def step(self, text):
        return StepResult((), terminated=True)
    def score(self): return 1.0
    def close(self): ...

class Factory:
    splits = ("train", "test")
    make = Env
    def tasks(self, split): return [Task(f"{split}-{n}", split) for n in range(4)]
    def expert(self, task): return lambda result: "x"
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Return settings that would run a file; the test fails if it ran."""
    (tmp_path / "trap.py").write_text(TRAP)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2", "answer": "4"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "called").exists()
    assert "trap" not in sys.modules


SETTINGS = [
    ("dataset", {"train": "rows.jsonl", "reward": "trap.py:reset_all"}, "trap.py:reset_all"),
    ("dataset", {"train": "rows.jsonl", "reward": "trap:reset_all"}, "trap:reset_all"),
    ("gymnasium", {"make": "trap:Trap"}, "trap:Trap"),
    ("gymnasium", {"make": "subprocess:getoutput", "arguments": {"cmd": "touch ran"}}, "subprocess:getoutput"),
    ("trap:Trap", {}, "trap:Trap"),
    ("trap.py:Trap", {}, "trap.py:Trap"),
]


@pytest.mark.parametrize(("name", "options", "code"), SETTINGS)
def test_code_that_settings_name_is_refused_and_not_imported(trap, name, options, code):
    with pytest.raises(TrustError, match=f"--trust {code}") as caught:
        EnvPool(name, options=options)
    assert caught.value.references == (code,)
    assert "\n" not in str(caught.value)
    with pytest.raises(TrustError):
        EnvPool(name, options=options, trust=["another.py:function"])


@pytest.mark.parametrize(("name", "options", "code"), SETTINGS)
def test_recipes_and_runs_cannot_trust_code_themselves(trap, name, options, code):
    table = "\n".join(f"{key} = {value!r}" for key, value in options.items() if isinstance(value, str))
    recipe = f'[environment]\nname = "{name}"\n[environment.options]\n{table}\n'
    for key in ("trust", "unsandboxed", "trusted_code"):
        (trap / "recipe.toml").write_text(recipe.replace("\n", f"\n{key} = true\n", 1))
        with pytest.raises(ConfigError, match=f"environment.{key}"):
            read_recipe("./recipe.toml")
    (trap / "recipe.toml").write_text(recipe)
    with pytest.raises(TrustError, match=code):
        train("./recipe.toml", run_dir=trap / "run")
    assert not (trap / "run").exists()
    (trap / "policy").mkdir()
    (trap / "env_info.json").write_text(f'{{"trusted_code": ["{code}"]}}')
    with pytest.raises(TrustError, match=code):
        evaluate(trap)


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_trusted_code_must_declare_itself(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2", "answer": "4"}\n')
    monkeypatch.chdir(tmp_path)
    for name, options, code in [
        ("gymnasium", {"make": "subprocess:getoutput", "arguments": {"cmd": "touch ran"}}, "subprocess:getoutput"),
        ("dataset", {"train": "rows.jsonl", "reward": "os:system"}, "os:system"),
        ("subprocess:Popen", {"args": ["touch", "ran"]}, "subprocess:Popen"),
    ]:
        with pytest.raises(EnvError, match=f"'{code}' is not usable as"):
            EnvPool(name, options=options, trust=[code], workers=1)
    assert not (tmp_path / "ran").exists()


@everywhere
@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
@pytest.mark.parametrize("reference", ["mine:Factory", "mine.py:Factory", "./mine.py:Factory"])
def test_trusted_factories_run_in_workers_without_environment_variables(tmp_path, monkeypatch, unsandboxed, reference):
    (tmp_path / "mine.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_TOKEN", "swordfish")
    with EnvPool(reference, workers=1, trust=["./mine.py:Factory", "mine:Factory"], unsandboxed=unsandboxed) as pool:
        env, task = pool.env(), pool.tasks("test")[0]
        assert env.reset(task, seed=0).messages[0].content == "no token"
        env.step("x")
        assert env.score() == 1.0
    assert "mine" not in sys.modules


@needs_sandbox
def test_a_project_in_the_home_directory_shares_only_the_named_file(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("swordfish")
    (home / "mine.py").write_text(
        ENV.replace('os.environ.get("SECRET_TOKEN", "no token")', f'str(os.listdir("{home}"))')
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    with EnvPool("mine.py:Factory", workers=1, trust=["mine.py:Factory"]) as pool:
        assert pool.env().reset(pool.tasks("test")[0], seed=0).messages[0].content == "['mine.py']"


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_a_project_cannot_hide_installed_packages(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ENV)
    (tmp_path / "json.py").write_text("raise RuntimeError('imported from the project')")
    monkeypatch.chdir(tmp_path)
    with EnvPool("mine:Factory", workers=1, trust=["mine:Factory"]) as pool:
        assert len(pool.tasks("test")) == 4


def test_environments_that_name_no_code_need_no_consent():
    assert named_code("pocket", {"difficulty": "a:b"}) == ()
    assert untrusted_code(named_code("appworld", {}), ()) == ()
    assert named_code(object(), {"make": "a:b"}) == ()


def test_strings_in_nested_values():
    assert list(strings_in({"a": ["b:c", 3, {"d": "e:f"}], "g": None})) == ["b:c", "e:f"]


def test_errors_of_trusted_code_are_failures(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ENV.replace("terminated=True)", "terminated=1 / 0)"))
    monkeypatch.chdir(tmp_path)
    with EnvPool("mine:Factory", workers=1, trust=["mine:Factory"]) as pool:
        env = pool.env()
        env.reset(pool.tasks("test")[0], seed=0)
        with pytest.raises(EnvFailure, match=r"(?s)mine.py.*ZeroDivisionError"):
            env.step("x")


def test_the_refusal_names_the_option_and_the_argument():
    with pytest.raises(TrustError, match=r"add --trust a:B on the command line, or trust=\['a:B'\] in Python"):
        EnvPool("a:B")


def test_the_refusal_of_a_cluster_says_what_to_check():
    with pytest.raises(
        TrustError, match=r"a Ray cluster to join, 'auto'.* the cluster is yours, then add --trust auto"
    ):
        check_trust(["auto"], ["auto:6379"])
    with pytest.raises(TrustError, match=r"'a:B', and a Ray cluster to join, 'h:1'.*--trust a:B --trust h:1"):
        check_trust(["a:B", "h:1"], [])
    check_trust(["h:1"], ["h:1"])


@pytest.mark.parametrize("address", ["10.9.8.7:6379", "auto"])
def test_a_recipe_from_python_needs_trust_for_its_cluster(address, tmp_path, monkeypatch):
    joined = []
    monkeypatch.setattr("seeupo.training.setup.start_ray", lambda *_: joined.append(address))
    recipe = Recipe.from_table({"engine": {"kind": "cluster", "address": address}})
    with pytest.raises(TrustError, match=address):
        train(recipe, run_dir=tmp_path / "run", progress=False)
    assert joined == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text", ["ray://h:1", "http://h:1", "h", "h:", ":1", "h:x", "local", "a b:1", "h:1/x", "os:system"]
)
def test_texts_that_are_no_address_of_a_cluster_are_refused(text):
    with pytest.raises(ConfigError, match=r"engine\.address"):
        Recipe.from_table({"engine": {"address": text}})


@pytest.mark.parametrize("text", ["auto", "h:1", "10.9.8.7:6379", "[::1]:6379", "head.example.org:6379"])
def test_addresses_of_clusters(text):
    assert Recipe.from_table({"engine": {"address": text}}).clusters == (text,)
