import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.tokenizers_like import TEMPLATES, tokenizer_like
from seeupo.rollout.chat import chat_format
from seeupo.rollout.template import REMINDER, Conversation, Template
from seeupo.types import Message, StepResult, Tool

CHATS = {name: chat_format(tokenizer_like(name)) for name in TEMPLATES}
END = CHATS["llama"].tokenizer.eos_token_id
FIRST = StepResult((Message("system", "be brief"), Message("user", "where is the cat?")))


def start(name="qwen2.5", **options) -> Conversation:
    return Conversation.start(CHATS[name], Template(**options), FIRST)


def text(conversation: Conversation) -> str:
    return conversation.chat.tokenizer.decode(conversation.prompt_ids())


def answered(content="on the mat", **options) -> StepResult:
    return StepResult((Message("tool", content),), **options)


def contains(sequence, part) -> bool:
    return any(tuple(sequence[n : n + len(part)]) == tuple(part) for n in range(len(sequence) - len(part) + 1))


@pytest.mark.parametrize("name", TEMPLATES)
@given(ids=st.lists(st.integers(5, 390), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_sampled_ids_are_unchanged_in_later_prompts(name, ids):
    conversation = start(name, reasoning=False)
    for turn in range(3):
        conversation.add([*ids, END], answered(f"answer {turn}"))
    prompt = conversation.prompt_ids()
    assert sum(tuple(prompt[n : n + len(ids) + 1]) == (*ids, END) for n in range(len(prompt))) >= 3


def test_sampled_ids_are_not_retokenized():
    """The same text has many tokenizations, and a policy samples any of them."""
    conversation = start(reasoning=False)
    chat = conversation.chat
    spelled = tuple(chat.encode(letter)[0] for letter in "that")
    assert chat.decode(spelled) == "that"
    conversation.add([*spelled, END], answered())
    assert contains(conversation.prompt_ids(), spelled)
    again = chat.encode(text(conversation))
    assert chat.tokenizer.decode(list(again)) == text(conversation)
    assert not contains(again, spelled)


def test_end_of_turn_token_appears_once():
    chat = CHATS["qwen2.5"]
    words = chat.encode("that")
    ended, cut = start(reasoning=False), start(reasoning=False)
    ended.add([*words, END], answered())
    cut.add(words, answered())
    assert ended.prompt_ids() == cut.prompt_ids()
    assert text(ended).count("<|im_end|>") == 4  # system, user, the response, the tool's


def test_earlier_thoughts_are_removed_and_the_last_message_has_the_reminder():
    conversation = start()
    chat = conversation.chat
    assert text(conversation).count(REMINDER) == 1
    conversation.add([*chat.encode("<think>the mat?</think>look()"), END], answered("a mat"))
    conversation.add([*chat.encode("<think>the cat?</think>look again()"), END], answered("a cat"))
    shown = text(conversation)
    assert "<think>" not in shown.replace(REMINDER, "")
    assert "look()" in shown
    assert "look again()" in shown
    assert shown.count(REMINDER) == 1
    assert f"a cat\n{REMINDER}" in shown
    plain = start(reasoning=False)
    plain.add([*chat.encode("<think>the mat?</think>look()"), END], answered("a mat"))
    assert "<think>the mat?</think>look()" in text(plain)
    assert REMINDER not in text(plain)


def test_long_observations_are_truncated_with_a_note():
    conversation = start(reasoning=False, max_observation_tokens=5)
    words = "cat " * 40
    conversation.add([END], answered(words))
    cut = len(conversation.chat.encode(words)) - 5
    assert f"[... {cut} tokens cut]" in text(conversation)
    assert "be brief" in text(conversation)


def test_long_prompts_lose_the_oldest_observations_first():
    conversation = start(reasoning=False, max_prompt_tokens=400)
    for turn in range(4):
        conversation.add([END], answered(f"{turn}" + " cat sat" * 60))
    shown = text(conversation)
    assert len(conversation.prompt_ids()) <= 400
    assert "0 cat" not in shown
    assert "tokens cut]" in shown
    assert "3 cat" in shown


def test_tools_are_rendered_natively_or_in_the_system_message_and_may_change():
    tools = tuple(Tool(name, f"To {name}.", {"type": "object", "properties": {}}) for name in ("look", "jump"))
    for name in ("qwen2.5", "llama"):
        conversation = Conversation.start(
            CHATS[name], Template(reasoning=False), StepResult(FIRST.messages, tools=tools[:1])
        )
        assert "look" in text(conversation)
        assert "jump" not in text(conversation)
        words = conversation.chat.encode("that")
        conversation.add([*words, END], answered(tools=tools))
        assert "jump" in text(conversation)
        assert contains(conversation.prompt_ids(), words)


def test_invalid_limits_are_refused():
    with pytest.raises(ValueError, match="max_observation_tokens = 0"):
        Template(max_observation_tokens=0)
    with pytest.raises(ValueError, match="max_prompt_tokens = 0"):
        Template(max_prompt_tokens=0)
