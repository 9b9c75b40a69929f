"""The story of a new user: a SQLite environment and a small Qwen2 model of their own, through the CLI and Python."""

import importlib
import json
import sys
import tomllib

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

import seeupo
from rollout.tokenizers_like import tokenizer_like
from seeupo.cli import main

pytestmark = pytest.mark.filterwarnings(
    "ignore:environments run without a sandbox", "ignore:no optimizer step was made"
)

GAME = '''
import random
import sqlite3

CITIES = ("Oslo", "Rome", "Lima", "Cairo")


class ShopDbEnv:
    """Asks for the number of customers in a city, which an SQL query finds out."""

    def reset(self, task: Task, *, seed: int) -> StepResult:
        generator = random.Random(task.seed)
        self.city, self.solved, self.actions = task.payload["city"], False, 0
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE customers (name TEXT, city TEXT)")
        rows = [(f"customer {n}", generator.choice(CITIES)) for n in range(20)]
        self.database.executemany("INSERT INTO customers VALUES (?, ?)", rows)
        self.database.execute("PRAGMA query_only = ON")
        question = f"customers(name, city): how many in {self.city}? Reply with sql QUERY or answer NUMBER"
        return StepResult((Message("user", question),))

    def step(self, text: str) -> StepResult:
        self.actions += 1
        command, _, rest = text.strip().partition(" ")
        if command == "answer":
            self.solved = rest == str(self.count())
            return StepResult((), terminated=True)
        try:
            found = self.database.execute(rest).fetchmany(5) if command == "sql" else "Error: sql or answer"
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            found = f"Error: {error}"
        return StepResult((Message("user", str(found)),), truncated=self.actions >= MAX_ACTIONS)

    def count(self) -> int:
        return self.database.execute("SELECT COUNT(*) FROM customers WHERE city = ?", (self.city,)).fetchone()[0]

    def score(self) -> float:
        return float(self.solved)

    def close(self) -> None:
        self.database.close()
'''
EXPERT = """
        def act(result: StepResult) -> str:
            last = result.messages[-1].content
            if last.startswith("[("):
                return "answer " + last.strip("[(,)]")
            return f"sql SELECT COUNT(*) FROM customers WHERE city = '{task.payload['city']}'"

        return act
"""
SMALL = {
    "run": {"iterations": 1, "threads": 1},
    "model": {"name": "./qwen"},
    "agent": {"max_tokens": 8, "max_turns": 2},
    "collect": {"tasks": 2, "group_size": 2},
    "evaluation": {"tasks": 2, "attempts": 1, "k": 1},
    "warm_start": {"episodes": 8, "batches": 2, "batch_episodes": 4, "learning_rate": 1e-3},
}
NAME = "shop_db:ShopDbFactory"


def cli(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result


def save_qwen(folder):
    """Save a Qwen2 model that is small enough for a test, with a tokenizer like that of Qwen 2.5."""
    tokenizer = tokenizer_like("qwen2.5")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_environment(folder):
    """Turn the skeleton into an environment on a database, as a user would with an editor."""
    cli("envs", "new", "shop_db")
    text = (folder / "shop_db.py").read_text()
    head, rest = text.split("NUMBERS = ", 1)
    factory = rest[rest.index("class ShopDbFactory") :]
    act, vocabulary = factory.index("        def act"), factory.index("    def vocabulary")
    factory = factory[:act].rstrip() + "\n" + EXPERT
    factory = factory.replace(
        'kind="box", seed=first + number)', 'payload={"city": CITIES[number % 4]}, seed=first + number)'
    )
    assert vocabulary > act
    (folder / "shop_db.py").write_text(f"{head}{GAME.lstrip()}\n\nMAX_ACTIONS = 4\n\n\n{factory}")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_environment(folder)
        save_qwen(folder / "qwen")
    return folder


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


def check_run(run, exported, *, sentence):
    """Check that a run tells the truth about its environment and that its exported policy loads in transformers."""
    assert tomllib.loads((run / "recipe.toml").read_text())["environment"]["name"] == NAME
    assert json.loads((run / "summary.json").read_text())["environment"] == NAME
    assert NAME in sentence
    assert f"An agent for {NAME}" in (run / "policy/README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert model.config.model_type == "qwen2"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "how many in Oslo?"}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = prompt if isinstance(prompt, torch.Tensor) else prompt["input_ids"]
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[1] > ids.shape[1]


def test_through_the_command_line(here):
    checked = cli("envs", "check", NAME, "--tasks", 8)
    assert "8/8" in checked.stdout
    overrides = [f"--{section}.{key}={value}" for section, keys in SMALL.items() for key, value in keys.items()]
    trained = cli("train", "custom", "--environment.name", NAME, "--out", "by-cli", *overrides)
    assert f"seeupo eval by-cli --trust {NAME}" in trained.stdout
    reported = cli("report", "by-cli")
    evaluated = cli(
        "eval", "by-cli", "--trust", NAME, "--tasks", 2, "--attempts", 1, "-k", 1, "--out", "cli.json", "--json"
    )
    assert json.loads(evaluated.stdout)["plan"]["environment"] == NAME
    cli("export", "by-cli", "cli-exported")
    check_run(here / "by-cli", here / "cli-exported", sentence=reported.stdout)


def test_through_python(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    factory = importlib.import_module("shop_db").ShopDbFactory()
    try:
        table = {**SMALL, "agent": {**SMALL["agent"], "reasoning": False}}
        result = seeupo.train(seeupo.Recipe.from_table(table), run_dir="by-python", environment=factory)
        page = seeupo.write_report([result.run_dir], here / "report.html")
        evaluation = seeupo.evaluate(result.run_dir, factory, tasks=2, attempts=1, k=1)
        seeupo.export(result.run_dir, here / "python-exported")
    finally:
        del sys.modules["shop_db"]
    assert evaluation.plan.environment == NAME
    assert evaluation.summary()["failures"] == 0
    check_run(result.run_dir, here / "python-exported", sentence=page.sentences[0])
