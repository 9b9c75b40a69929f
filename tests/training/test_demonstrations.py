"""Conversations as turns: equal to what the chat template renders, and to an expert's demonstrations."""

import contextlib
import json
import tracemalloc

import pytest

from rollout.tokenizers_like import TEMPLATES, tokenizer_like
from seeupo.config.model_settings import TinyConfig
from seeupo.errors import DemonstrationFileError
from seeupo.models.tiny import tiny_tokenizer
from seeupo.rollout.chat import chat_format
from seeupo.rollout.template import REMINDER, Conversation, Template
from seeupo.runs.demonstration_files import data_format
from seeupo.runs.trajectory_files import write_trajectories
from seeupo.training.demonstrations import PackedDemonstrations, read_chat_demonstrations
from seeupo.training.run import train
from seeupo.training.setup import build
from seeupo.training.warm_start import load_demonstrations
from seeupo.types import Trajectory, Turn
from training.small_runs import small

PLAIN = Template(reasoning=False)
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "that is that"},
    {"role": "user", "content": "where?"},
    {"role": "assistant", "content": "on the mat"},
    {"role": "user", "content": "thanks"},
]
CALL = {"type": "function", "function": {"name": "look", "arguments": {"what": "the mat"}}}
CALLS = [
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "a cat"},
    {"role": "assistant", "content": "on the mat"},
]


def turns_of(path, name, row, template=PLAIN, context=10_000):
    path.write_text(json.dumps(row))
    ((_, turns),) = read_chat_demonstrations(path, chat_format(tokenizer_like(name)), template, context=context)
    return turns


def assert_equal_to_the_template(name, turns, messages, tools=None):
    """Compare each turn with the template's rendering of the conversation before it and up to its end."""
    tokenizer = tokenizer_like(name)
    chat = chat_format(tokenizer)

    def rendered(entries, *, generation):
        return tokenizer.apply_chat_template(
            entries, tools=tools, chat_template=chat.template, add_generation_prompt=generation, tokenize=False
        )

    positions = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(turns) == len(positions)
    for index, (turn, position) in enumerate(zip(turns, positions, strict=True)):
        prompt, action = tokenizer.decode(turn.prompt_ids), tokenizer.decode(turn.action_ids)
        before, after = (
            rendered(messages[:position], generation=True),
            rendered(messages[: position + 1], generation=False),
        )
        if name == "qwen3":  # it shows earlier responses without the empty thought that they are sampled after
            assert prompt.count(EMPTY_THOUGHT) == index + 1
            assert prompt.replace(EMPTY_THOUGHT, "") == before.replace(EMPTY_THOUGHT, "")
            assert after.startswith(prompt.replace(EMPTY_THOUGHT, "") + action)
        else:
            assert prompt == before
            assert after.startswith(prompt + action)
        assert turn.action_ids[-1] == tokenizer.eos_token_id
        assert turn.index == index


@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_equal_the_rendered_conversation(tmp_path, name):
    turns = turns_of(tmp_path / "chat.jsonl", name, {"messages": TALK})
    assert_equal_to_the_template(name, turns, TALK)
    encode = chat_format(tokenizer_like(name)).encode
    assert [turn.action_ids[:-1] for turn in turns] == [encode("that is that"), encode("on the mat")]


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_tools_and_calls_equal_the_rendered_conversation(tmp_path, name):
    turns = turns_of(tmp_path / "chat.jsonl", name, {"messages": CALLS, "tools": [TOOL]})
    assert_equal_to_the_template(name, turns, CALLS, [TOOL])
    assert '"arguments": {"what": "the mat"}' in tokenizer_like(name).decode(turns[0].action_ids)


@pytest.mark.parametrize("name", ["llama", "none", "strict"])
def test_templates_without_tools_show_them_as_text(tmp_path, name):
    decode = tokenizer_like(name).decode
    first, second = turns_of(tmp_path / "chat.jsonl", name, {"messages": CALLS, "tools": [TOOL]})
    call = '<tool_call>{"name": "look", "arguments": {"what": "the mat"}}</tool_call>'
    assert decode(first.action_ids).startswith(call)
    assert '"name": "look"' in decode(first.prompt_ids)
    assert call in decode(second.prompt_ids)
    assert "a cat" in decode(second.prompt_ids)


def test_pairs_are_conversations_of_which_the_completion_is_trained_on(tmp_path):
    pair = turns_of(tmp_path / "pair.jsonl", "qwen2.5", {"prompt": TALK[:4], "completion": "on the mat"})
    chat = turns_of(tmp_path / "chat.jsonl", "qwen2.5", {"messages": TALK})
    assert pair == chat[1:]


def test_thoughts_are_trained_on_and_removed_from_later_prompts(tmp_path):
    thought = "<think>the mat?</think>look"
    messages = [TALK[1], {"role": "assistant", "content": thought}, TALK[3], TALK[4]]
    first, second = turns_of(tmp_path / "chat.jsonl", "qwen2.5", {"messages": messages}, Template())
    decode = tokenizer_like("qwen2.5").decode
    assert decode(first.action_ids) == f"{thought}<|im_end|>"
    assert f"where?\n{REMINDER}" in decode(second.prompt_ids)
    assert "the mat?" not in decode(second.prompt_ids)
    assert "assistant\nlook<|im_end|>" in decode(second.prompt_ids)
    _, second = turns_of(tmp_path / "chat.jsonl", "qwen2.5", {"messages": messages}, PLAIN)
    assert thought in decode(second.prompt_ids)


def test_conversations_that_do_not_fit_the_model_are_refused_with_their_line(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{json.dumps({'messages': TALK[:3]})}\n{json.dumps({'messages': TALK})}\n")
    tokenizer = tokenizer_like("qwen2.5")
    chat = chat_format(tokenizer)
    texts = [
        tokenizer.apply_chat_template(talk, chat_template=chat.template, tokenize=False)
        for talk in (TALK[:3], TALK[:5])
    ]
    first, both = (len(tokenizer(text.rstrip()).input_ids) for text in texts)
    too_long = rf"line 2: it has {both} tokens up to message 5; .*context is {first}\."
    with pytest.raises(DemonstrationFileError, match=too_long):
        list(read_chat_demonstrations(path, chat, PLAIN, context=first))
    words = chat_format(tiny_tokenizer(TinyConfig(words=["the", "cat?"])))
    unknown = r"line 1: the tokenizer does not know all of its words; .*\(for tiny: --model.tiny.words false\)"
    with pytest.raises(DemonstrationFileError, match=unknown):
        list(read_chat_demonstrations(path, words, PLAIN, context=1000))


def test_malformed_lines_are_reported_before_lines_that_do_not_fit_the_model(tmp_path):
    path = tmp_path / "chat.jsonl"
    call = {"type": "function", "function": {"name": "look", "arguments": "{"}}
    malformed = [TALK[1], {"role": "assistant", "content": "", "tool_calls": [call]}]
    path.write_text(f"{json.dumps({'messages': TALK})}\n{json.dumps({'messages': malformed})}\n")
    words = chat_format(tiny_tokenizer(TinyConfig(words=["the", "cat?"])))
    with pytest.raises(DemonstrationFileError, match=r"line 2: the arguments of a tool call .* expected JSON"):
        list(read_chat_demonstrations(path, words, PLAIN, context=1000))


def test_conversations_that_the_template_refuses_are_named_by_their_line(tmp_path):
    path = tmp_path / "chat.jsonl"
    tokenizer = tokenizer_like("strict")
    tokenizer.chat_template += (
        "{% if 'where' in messages[-1]['content'] %}{{ raise_exception('never ask') }}{% endif %}"
    )
    path.write_text(json.dumps({"messages": TALK}))
    with pytest.raises(DemonstrationFileError, match="line 1: the chat template failed: TemplateError: never ask"):
        list(read_chat_demonstrations(path, chat_format(tokenizer), PLAIN, context=1000))


@pytest.mark.parametrize("depth", [500, 990, 5_000, 100_000])
def test_deeply_nested_values_are_read_or_refused(tmp_path, depth):
    path = tmp_path / "chat.jsonl"
    row = json.dumps({"messages": CALLS, "tools": [TOOL]})
    chats = [chat_format(tokenizer_like(name)) for name in ("llama", "qwen2.5")]
    for place in ('"the mat"', '"object"'):
        path.write_text(row.replace(place, "[" * depth + "]" * depth))
        for chat in chats:
            with contextlib.suppress(DemonstrationFileError):
                list(read_chat_demonstrations(path, chat, PLAIN, context=10_000))


def experts_episodes(recipe, folder):
    """Write the same episodes of the expert as chat messages and as trajectories, and return both paths."""
    chat_file, trajectory_file = folder / "chat.jsonl", folder / "trajectories.jsonl.gz"
    rows, trajectories = [], []
    with build(recipe) as components:
        pool, chat, template = components.pool, components.runner.chat, components.runner.template
        for number, task in enumerate(components.train_tasks[:32]):
            episode, expert = pool.start(task, number), pool.expert(task)
            result = episode.reset().result()
            conversation, messages, turns = Conversation.start(chat, template, result), list(result.messages), []
            rows.append({"messages": [{"role": each.role, "content": each.content} for each in messages]})
            while not result.done:
                action = expert.submit(result).result()
                ids = chat.response(action)
                turns.append(Turn(f"t{number}", len(turns), conversation.prompt_ids(), ids))
                result = episode.step(action).result()
                conversation.add(ids, result)
                rows[-1]["messages"].append({"role": "assistant", "content": action})
                rows[-1]["messages"] += [{"role": each.role, "content": each.content} for each in result.messages]
            episode.close()
            trajectories.append(Trajectory(f"t{number}", "g", task.id, tuple(turns), 1.0))
    chat_file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_trajectories(trajectory_file, trajectories, header={})
    return chat_file, trajectory_file


def test_a_chat_file_gives_the_same_warm_start_as_a_trajectory_file(tmp_path):
    files = experts_episodes(small(), tmp_path)
    loaded, losses = [], []
    for number, file in enumerate(files):
        recipe = small(warm_start={"file": str(file)}, run={"iterations": 1}, evaluation={"every": 0, "tasks": 1})
        with build(recipe) as components:
            demonstrations = load_demonstrations(components).demonstrations
            loaded.append([[(turn.prompt_ids, turn.action_ids) for turn in turns] for turns in demonstrations])
        result = train(recipe, run_dir=tmp_path / f"run {number}")
        records = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
        losses.append([record["loss"] for record in records if record["kind"] == "warm_start"])
    assert loaded[0] == loaded[1]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0][-1] < 0.5 * losses[0][0]


def packed(demonstrations):
    stored = PackedDemonstrations()
    for demonstration in demonstrations:
        stored.append(demonstration)
    return stored


def test_packed_demonstrations_are_the_same_ones():
    first = (Turn("line 1", 0, (1, 2, 70_000), (3,)), Turn("line 1", 2, (), (4, 5)))
    second = (Turn("line 2", 0, (6,), ()),)
    assert list(packed([first, second, ()])) == [first, second, ()]
    assert packed([first, second])[-1] == second
    assert packed([first, second])[:1] == [first]
    with pytest.raises(IndexError):
        packed([first])[1]


def test_many_demonstrations_take_little_memory_and_their_number_of_tokens_is_limited(monkeypatch):
    def demonstration(number):
        return (Turn(f"line {number}", 0, tuple(range(50_000, 50_500)), tuple(range(60_000, 60_500))),)

    tracemalloc.start()
    stored = packed(map(demonstration, range(1000)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(stored) == 1000
    assert size < 6 * 1_000_000  # about forty bytes per token as tuples of integers
    monkeypatch.setattr("seeupo.training.demonstrations.MAX_TOKENS", 10_000)
    with pytest.raises(DemonstrationFileError, match="the first 11 demonstrations have more than"):
        packed(map(demonstration, range(1000)))


def test_a_long_line_is_refused_before_it_is_tokenized(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a b " * 1_000_000, "completion": "c"}) + "\n")
    with pytest.raises(DemonstrationFileError, match="line 1 is longer than the limit of 4 MB"):
        data_format(path)
