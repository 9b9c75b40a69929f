"""`seeupo data check`: counts, tokens by the model's template, problems with their line."""

import json

import pytest
from click.testing import CliRunner

from rollout.tokenizers_like import tokenizer_like
from seeupo.cli import main
from seeupo.config.model_settings import LoraSettings, TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.errors import DemonstrationFileError
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.rollout.chat import chat_format
from seeupo.rollout.template import Template
from seeupo.runs.trajectory_files import write_trajectories
from seeupo.training.data_check import check_data
from seeupo.training.demonstrations import read_chat_demonstrations
from seeupo.types import Failure, FailureKind, Trajectory, Turn

CALL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
ROWS = [
    {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "the cat?"},
            {"role": "assistant", "content": "<think>where?</think>", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "on the mat"},
            {"role": "assistant", "content": "on the mat"},
        ]
    },
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
]


@pytest.fixture
def chat_file(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with a Qwen-like chat template and a context of 260 tokens."""
    path = tmp_path_factory.mktemp("model")
    policy = load_policy("tiny", tiny=TinyConfig(width=16, layers=1, heads=2, context=260))
    policy.tokenizer.chat_template = tokenizer_like("qwen2.5").chat_template
    save_model(policy.model, policy.tokenizer, path)
    return path


def test_conversations_are_counted(chat_file):
    found = check_data(chat_file)
    assert found.format == "chat messages"
    assert found.roles == {"system": 1, "user": 2, "assistant": 3, "tool": 1}
    assert found.turns == [2, 1]
    assert (found.thoughts, found.calls) == (1, 2)
    assert found.trained_tokens == 0


def test_tokens_are_those_of_the_warm_start(chat_file, model):
    chat = chat_format(load_policy(str(model)).tokenizer)
    read = read_chat_demonstrations(chat_file, chat, Template(reasoning=False), context=260)
    turns = [turn for _, demonstration in read for turn in demonstration]
    found = check_data(chat_file, model=str(model), plain=True)
    assert found.trained_tokens == sum(len(turn.action_ids) for turn in turns)
    assert found.longest_prompt == max(len(turn.prompt_ids) for turn in turns)
    assert found.longest_response == max(len(turn.action_ids) for turn in turns)


@pytest.mark.parametrize("own_tokenizer", [True, False])
def test_an_adapter_folder_has_the_tokenizer_and_the_context_of_its_base_model(
    chat_file, model, tmp_path, own_tokenizer
):
    folder = tmp_path / "adapter"
    policy = load_policy(str(model), merge=False)
    LocalEngine(policy, OptimizerSettings(), lora=LoraSettings(rank=2)).save(folder)
    assert not (folder / "config.json").exists()
    if not own_tokenizer:
        for file in folder.glob("*token*"):
            file.unlink()
    assert check_data(chat_file, model=str(folder), plain=True) == check_data(chat_file, model=str(model), plain=True)


def test_conversations_must_fit_the_context_with_the_reminder_to_reason(chat_file, model):
    with pytest.raises(DemonstrationFileError, match=r"line 1: it has \d+ tokens up to message \d; .*context is 260"):
        check_data(chat_file, model=str(model))


def test_trajectories_are_counted_and_must_fit_the_tokenizer(tmp_path, model):
    def trajectory(name, reward, *turns, failure=None):
        made = tuple(Turn(name, index, (1, 2), ids) for index, ids in enumerate(turns))
        return Trajectory(name, "g", "task", made, reward, failure=failure)

    failure = Failure(FailureKind.OTHER, "lost")
    path = tmp_path / "good.jsonl.gz"
    write_trajectories(path, [trajectory("a", 1.0, (3,), (4, 5)), trajectory("b", 0.0, failure=failure)], header={})
    found = check_data(path, model=str(model))
    assert found.format == "trajectories"
    assert (found.turns, found.rewards, found.failed) == ([2], [1.0], 1)
    assert (found.trained_tokens, found.longest_prompt, found.longest_response) == (3, 2, 2)
    for name, ids, problem in (("token", (3, 99_999), "token 99999"), ("long", (3,) * 260, "a turn has 262 tokens")):
        write_trajectories(tmp_path / name, [trajectory("a", 1.0, (3,)), trajectory("b", 1.0, ids)], header={})
        assert len(check_data(tmp_path / name).turns) == 2
        with pytest.raises(DemonstrationFileError, match=f"line 3: .*{problem}"):
            check_data(tmp_path / name, model=str(model))


def test_command_prints_what_is_in_a_file(chat_file, model):
    result = CliRunner().invoke(main, ["data", "check", str(chat_file), "--model", str(model), "--plain"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"{chat_file}: 2 demonstrations (chat messages)"
    assert [line.split()[0] for line in lines[1:]] == ["messages", "turns", "responses", "tokens"]
    assert "system 1, user 2, assistant 3, tool 1" in lines[1]
    assert "1 of 3 have a thought; 2 tool calls" in lines[3]


def test_command_fails_at_the_first_problem(chat_file):
    with chat_file.open("a") as file:
        file.write('{"messages": [{"role": "bot", "content": "\\u001b[31m"}]}\n')
    result = CliRunner().invoke(main, ["data", "check", str(chat_file)])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: {chat_file}, line 3: the role of message 1")
