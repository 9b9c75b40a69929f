import pytest

from rollout.tokenizers_like import tokenizer_like
from seeupo.rollout.chat import chat_format
from seeupo.rollout.gateway.transcript import Transcript
from seeupo.types import Message, Tool, ToolCall

SYSTEM, TASK = Message("system", "be brief"), Message("user", "the cat?")
TOOL = Tool("look", "Look at it.", {"type": "object", "properties": {"what": {"type": "string"}}})
CALL = Message("assistant", "", (ToolCall("look", {"what": "cat", "n": [1, 2.0]}),))
RESULT = Message("tool", "on the mat")
FAMILIES = ("llama", "qwen2.5", "qwen3")


def sampled(chat, text):
    """Return tokens that no tokenizer would give for the text: one for each character."""
    ids = [id_ for character in text for id_ in chat.encode(character)]
    assert tuple(ids) != chat.encode(text)
    return (*ids, chat.tokenizer.eos_token_id)


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_tokens_are_spliced_where_the_program_sends_them_back(name):
    chat = chat_format(tokenizer_like(name))
    transcript = Transcript(chat)
    prompt = transcript.prompt_ids([SYSTEM, TASK], [TOOL])
    ids = sampled(chat, "it is that")
    transcript.add(CALL, prompt, ids)
    reordered = Message("assistant", "", (ToolCall("look", {"n": [1, 2.0], "what": "cat"}),))
    following = transcript.prompt_ids([SYSTEM, TASK, reordered, RESULT], [TOOL])
    assert following[: len(prompt + ids)] == prompt + ids
    assert following == prompt + chat.spliced(ids, [RESULT])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "history",
    [
        [SYSTEM, TASK, Message("assistant", "it was that"), RESULT],
        [SYSTEM, Message("user", "the mat?"), Message("assistant", "no", CALL.tool_calls), RESULT],
        [SYSTEM, TASK, CALL, Message("assistant", "and"), RESULT, Message("user", "so?")],
    ],
    ids=["another response", "another question", "two responses in a row"],
)
def test_a_rewritten_history_is_rendered_from_its_text(name, history):
    chat = chat_format(tokenizer_like(name))
    transcript = Transcript(chat)
    transcript.add(Message("assistant", "it is that"), transcript.prompt_ids([SYSTEM, TASK], [TOOL]), (7, 8, 9))
    assert transcript.prompt_ids(history, [TOOL]) == Transcript(chat).prompt_ids(history, [TOOL])


def test_the_tokens_of_equal_responses_are_those_of_the_same_prompt():
    chat = chat_format(tokenizer_like("qwen2.5"))
    transcript = Transcript(chat)
    response = Message("assistant", "that")
    prompts = [transcript.prompt_ids([Message("user", question)], []) for question in ("the cat?", "the mat?")]
    actions = [(*chat.encode(text), chat.tokenizer.eos_token_id) for text in ("th", "at")]
    for prompt, action in zip(prompts, actions, strict=True):
        transcript.add(response, prompt, action)
    for question, prompt, action in zip(("the cat?", "the mat?"), prompts, actions, strict=True):
        following = transcript.prompt_ids([Message("user", question), response, TASK], [])
        assert following[: len(prompt + action)] == prompt + action


def test_a_truncated_response_is_continued_as_it_was_sampled():
    chat = chat_format(tokenizer_like("qwen2.5"))
    transcript = Transcript(chat)
    prompt = transcript.prompt_ids([TASK], [])
    ids = sampled(chat, "that")[:-1]
    transcript.add(Message("assistant", "that"), prompt, ids)
    following = transcript.prompt_ids([TASK, Message("assistant", "that"), TASK], [])
    assert following[: len(prompt + ids) + 1] == (*prompt, *ids, chat.tokenizer.eos_token_id)
