"""Runs on a custom environment name it everywhere, and use it or say that it must be given; never another one."""

import importlib
import json
import subprocess
import sys
import tomllib

import pytest
from click.testing import CliRunner

from seeupo import evaluate, resume, train, write_report
from seeupo.cli import main
from seeupo.config.schema import Recipe
from seeupo.envs.references import reference_to, same_code
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import TrustError
from seeupo.errors import EnvError, TrainingError
from seeupo.utils.skeletons import ENVIRONMENT

pytestmark = pytest.mark.filterwarnings(
    "ignore:environments run without a sandbox", "ignore:no optimizer step was made"
)

NAME = "my_box:MyBoxFactory"
TABLE = {
    "run": {"iterations": 1, "threads": 1},
    "model": {"tiny": {"width": 16, "layers": 1, "heads": 2, "context": 128}},
    "agent": {"reasoning": False, "max_tokens": 4, "max_turns": 2},
    "collect": {"tasks": 2, "group_size": 2},
    "evaluation": {"tasks": 2, "attempts": 1, "k": 1},
}
MORE = {"run.iterations": 2}


def small(**sections):
    return Recipe.from_table({**TABLE, **sections})


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a directory with the module of a custom environment and a run on an object of it."""
    folder = tmp_path_factory.mktemp("project")
    ENVIRONMENT.write("my_box", folder)
    sys.path.append(str(folder))
    try:
        factory = importlib.import_module("my_box").MyBoxFactory()
        train(small(), run_dir=folder / "run", environment=factory)
        yield folder
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("my_box", None)


@pytest.fixture
def run(project, monkeypatch):
    monkeypatch.chdir(project)
    return project / "run"


def test_every_file_of_the_run_names_it(run):
    recipe = tomllib.loads((run / "recipe.toml").read_text())
    assert recipe["environment"]["name"] == NAME
    assert recipe["environment"]["options"] == {}
    assert json.loads((run / "env_info.json").read_text())["custom_environment"] == NAME
    assert json.loads((run / "summary.json").read_text())["environment"] == NAME
    assert json.loads((run / "evaluations/00000.json").read_text())["plan"]["environment"] == NAME
    card = (run / "policy/README.md").read_text()
    assert f"An agent for {NAME}" in card
    assert f"tasks of `{NAME}`" in card
    assert f'name = "{NAME}"' in card
    for file in run.rglob("*"):
        if file.suffix in (".toml", ".json", ".jsonl", ".md"):
            assert "pocket" not in file.read_text(), file


def test_the_report_names_it(run, tmp_path):
    page = write_report([run], tmp_path / "report.html")
    assert NAME in page.sentences[0]


def test_eval_uses_it_with_consent_only(run, tmp_path):
    refused = cli("eval", run, "--out", tmp_path / "a.json")
    assert refused.exit_code == 1
    assert f"--trust {NAME}" in refused.stderr
    for consent in (["--trust", NAME], ["--env", NAME], ["--env", "my_box.py:MyBoxFactory"]):
        out = tmp_path / f"{len(consent[1])}{consent[0]}.json"
        result = cli("eval", run, *consent, "--tasks", 1, "--attempts", 1, "-k", 1, "--out", out)
        assert result.exit_code == 0, result.output
        assert json.loads(out.read_text())["plan"]["environment"] == consent[1]


def test_result_files_have_a_name_without_the_characters_of_a_path(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reference = f"{run.parent}/my_box.py:MyBoxFactory"
    result = cli("eval", "expert", "--env", reference, "--tasks", 1, "--attempts", 1, "-k", 1)
    assert result.exit_code == 0, result.output
    (written,) = (tmp_path / "runs/eval").iterdir()
    assert written.name.endswith("my_box.py-MyBoxFactory-test-001.json")


def test_agents_show_uses_it_with_consent_only(run):
    assert f"--trust {NAME}" in cli("agents", "show", "--model", run).stderr
    for consent in (["--trust", NAME], ["--env", NAME]):
        result = cli("agents", "show", "--model", run, *consent)
        assert result.exit_code == 0, result.output
        assert "report" in result.stdout


def test_python_uses_it_with_consent_only(run):
    with pytest.raises(TrustError, match=NAME):
        evaluate(run, attempts=1, k=1)
    assert evaluate(run, trust=[NAME], tasks=1, attempts=1, k=1).plan.environment == NAME
    with pytest.raises(TrustError, match=NAME):
        resume(run, changes=MORE)


def copied(run, tmp_path):
    subprocess.run(["cp", "-r", run, tmp_path / "copy"], check=True)
    return tmp_path / "copy"


def test_resume_uses_it_with_consent_only(run, tmp_path):
    copy = copied(run, tmp_path)
    refused = cli("train", "--resume", copy, "--run.iterations", 2)
    assert refused.exit_code == 1
    assert f"--trust {NAME}" in refused.stderr
    assert refused.output.count("\n") == 1, "only the refusal is printed"
    result = cli("train", "--resume", copy, "--run.iterations", 2, "--trust", NAME)
    assert result.exit_code == 0, result.output
    assert f"seeupo eval {copy} --trust {NAME}" in result.stdout
    assert json.loads((copy / "summary.json").read_text())["iterations"] == 2


def test_resume_takes_it_from_the_command_line(run, tmp_path):
    copy = copied(run, tmp_path)
    result = cli("train", "--resume", copy, "--run.iterations", 2, "--environment.name", "my_box.py:MyBoxFactory")
    assert result.exit_code == 0, result.output
    recipe = tomllib.loads((copy / "recipe.toml").read_text())
    assert recipe["environment"]["name"] == "my_box.py:MyBoxFactory"
    changes = json.loads((copy / "env_info.json").read_text())["changes"]
    assert [each["key"] for each in changes] == ["run.iterations", "environment.name"]


def test_results_are_comparable_if_only_the_module_is_named_differently():
    assert same_code("my_box:F", "envs/my_box.py:F")
    assert same_code("my_box:F(...)", "__main__:F")
    assert not same_code("my_box:F", "my_box:G")
    assert not same_code("pocket", "my_box:pocket")


def test_resume_with_other_tasks_prints_only_the_refusal(run, tmp_path):
    copy = copied(run, tmp_path)
    result = cli("train", "--resume", copy, "--run.iterations", 2, "--environment.name", "pocket")
    assert result.exit_code == 1
    assert "Resume with the environment and options that the run was started with" in result.stderr
    assert result.output.count("\n") == 1


class Sized:
    """A factory whose tasks depend on an argument that it does not keep."""

    splits = ("train", "test")

    def __init__(self, size=4):
        self.tasks_of = {split: [size] for split in self.splits}


class Kept:
    def __init__(self, size=4, *, names=("a", "b")):
        self.size, self._names = size, names


def test_objects_are_recorded_by_their_class():
    module = __name__
    assert reference_to(Kept()) == f"{module}:Kept"
    assert reference_to(Kept(5)) == f"{module}:Kept(...)"
    assert reference_to(Kept(4.0)) == f"{module}:Kept(...)"
    assert reference_to(Kept(names=("a",))) == f"{module}:Kept(...)"
    assert reference_to(Sized()) == f"{module}:Sized(...)"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("my_box:MyBoxFactory(...)", "takes arguments that were not recorded. Name it again with its options"),
        ("__main__:MyBoxFactory", "was defined in a script or a function"),
        ("my_box:test.<locals>.MyBoxFactory", "was defined in a script or a function"),
    ],
)
def test_an_environment_that_cannot_be_created_again_must_be_given(run, tmp_path, name, advice):
    copy = copied(run, tmp_path)
    for file in (copy / "recipe.toml", copy / "env_info.json"):
        file.write_text(file.read_text().replace(NAME, name))
    for command in (["eval", copy], ["agents", "show", "--model", copy], ["train", "--resume", copy]):
        result = cli(*command, "--trust", name)
        assert result.exit_code == 1
        assert advice in result.stderr
        assert "or pass its factory again from Python (environment=...)" in result.stderr
        assert result.output.count("\n") == 1
    factory = sys.modules["my_box"].MyBoxFactory()
    assert evaluate(copy, factory, tasks=1, attempts=1, k=1).plan.environment == NAME
    assert resume(copy, environment=factory, changes=MORE).summary["environment"] == NAME
    assert f'name = "{NAME}"' in (copy / "recipe.toml").read_text()


def test_scripts_are_recorded_by_their_file(tmp_path):
    (tmp_path / "script.py").write_text(
        "from seeupo.envs.references import reference_to\n"
        "class Factory: ...\n"
        "if __name__ == '__main__': print(reference_to(Factory()))\n"
    )

    def printed(*arguments, folder=tmp_path):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    assert printed("script.py") == "script.py:Factory"
    assert printed("-m", "script") == "script:Factory"
    (tmp_path / "elsewhere").mkdir()
    assert printed("../script.py", folder=tmp_path / "elsewhere") == "__main__:Factory"


def test_a_spec_is_recorded_by_its_factory_and_runs_in_workers(run, tmp_path):
    spec = EnvSpec(name="box", factory=NAME)
    result = train(small(), run_dir=tmp_path / "run", environment=spec)
    assert f'name = "{NAME}"' in (result.run_dir / "recipe.toml").read_text()
    assert result.summary["environment"] == NAME
    assert evaluate(result.run_dir, spec, tasks=1, attempts=1, k=1).plan.environment == "box"


def test_another_environment_drops_the_options_of_the_recipe(run, tmp_path):
    result = cli("train", "tiny-pocket", "--environment.name", NAME, "--warm_start", "none", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "100 training tasks" in result.stdout
    kept = cli("train", "tiny-pocket", "--environment.name", "pocket", "--dry-run")
    assert "4096 training tasks" in kept.stdout


def test_the_recipe_for_other_environments_is_custom(run, tmp_path, monkeypatch):
    result = cli("train", "--environment.name", NAME, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"{NAME}: 100 training tasks" in result.stdout
    assert "pocket" not in result.stdout
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seeupo.training.setup.build", stop)
    for environment, name in ((sys.modules["my_box"].MyBoxFactory(), NAME), (None, "pocket")):
        with pytest.raises(TrainingError, match=f"^{name}$"):
            train(environment=environment)


def stop(recipe, *_):
    raise TrainingError(recipe.environment.name)


def test_references_are_accepted_wherever_an_environment_is_named(run, tmp_path):
    for name in (NAME, "my_box.py:MyBoxFactory", f"{run.parent}/my_box.py:MyBoxFactory"):
        checked = cli("envs", "check", name, "--tasks", 1)
        assert checked.exit_code == 0, checked.output
    played = CliRunner().invoke(main, ["envs", "play", NAME], input="open\n")
    assert played.exit_code == 0, played.output
    assert "number" in played.output
    assert cli("train", "--environment.name", "my_box.py:MyBoxFactory", "--dry-run").exit_code == 0
    missing = cli("envs", "check", "my_bax:MyBoxFactory")
    assert "there is no module 'my_bax'" in missing.stderr
    assert "has no MyBaxFactory" in cli("envs", "check", "my_box:MyBaxFactory").stderr


def test_options_reach_the_factory(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (run.parent / "my_box.py").read_text()
    init = (
        '    splits = ("train", "test")\n\n    def __init__(self, *, count: int = 100):\n        self.count = count\n'
    )
    text = text.replace('    splits = ("train", "test")\n', init).replace("range(100)", "range(self.count)")
    (tmp_path / "counted.py").write_text(text)
    name = "counted:MyBoxFactory"
    result = cli("train", "--environment.name", name, "--environment.options.count", 7, "--dry-run")
    assert "7 training tasks, 7 held-out tasks" in result.stdout
    assert "expected int" in cli("envs", "check", name, "-o", "count=x").stderr
    with pytest.raises(EnvError, match="takes none"):
        evaluate("expert", sys.modules["my_box"].MyBoxFactory(), options={"count": 3})
