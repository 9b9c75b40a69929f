import pytest

from agents.tokenizers_like import TEMPLATES, tokenizer_like
from seeupo.agents.chat import PLAIN_TEMPLATE, chat_format
from seeupo.errors import ModelError
from seeupo.types import Message, Tool

SYSTEM, TASK, RESULT = Message("system", "be brief"), Message("user", "the cat?"), Message("tool", "on the mat")
TOOL = Tool("look", "Look at it.", {"type": "object", "properties": {"what": {"type": "string"}}})


@pytest.mark.parametrize("name", TEMPLATES)
def test_spliced_prompt_equals_the_rendered_conversation(name):
    tokenizer = tokenizer_like(name)
    chat = chat_format(tokenizer)
    pieces = chat.opening([SYSTEM, TASK], ()), chat.encode("that"), chat.between([RESULT])
    spliced = tokenizer.decode([token for piece in pieces for token in piece])
    result = {"role": "tool" if chat.tool_role else "user", "content": RESULT.content}
    entries = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the cat?"},
        {"role": "assistant", "content": "that"},
        result,
    ]
    whole = tokenizer.apply_chat_template(
        entries, chat_template=chat.template, add_generation_prompt=True, tokenize=False
    )
    if name == "qwen3":
        # It renders earlier responses without the empty thought that they are sampled after; a note says so.
        assert chat.notes
        assert spliced.replace("<think>\n\n</think>\n\nthat", "that") == whole
    else:
        assert not chat.notes
        assert spliced == whole


def test_template_features_are_detected():
    found = {name: chat_format(tokenizer_like(name)) for name in TEMPLATES}
    assert {name: chat.native_tools for name, chat in found.items()} == {
        "llama": False, "qwen2.5": True, "qwen3": True, "none": False, "strict": False,
    }  # fmt: skip
    assert {name for name, chat in found.items() if not chat.tool_role} == {"strict"}
    text = found["qwen2.5"].tokenizer.decode(found["qwen2.5"].opening([TASK], [TOOL]))
    assert '"name": "look"' in text
    assert "what" in text
    strict = found["strict"]
    assert "<|im_start|>user\non the mat" in strict.tokenizer.decode(strict.between([RESULT]))


def test_template_that_cannot_be_spliced_is_replaced_with_a_warning():
    with pytest.warns(UserWarning, match=r"cannot be spliced \(the text between two responses"):
        chat = chat_format(tokenizer_like("counting"))
    assert "tool: on the mat" in chat.tokenizer.decode(chat.between([RESULT]))


def test_default_of_several_named_templates_is_used():
    tokenizer = tokenizer_like("qwen2.5")
    own = tokenizer.chat_template
    tokenizer.chat_template = {"default": own, "rag": "{{ 'rag' }}"}
    assert chat_format(tokenizer).template == own


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{% for %}", "{{ x() }}"])
def test_template_that_fails_is_replaced_with_a_warning(template):
    tokenizer = tokenizer_like("llama")
    tokenizer.chat_template = template
    with pytest.warns(UserWarning, match="cannot be spliced"):
        assert chat_format(tokenizer).template == PLAIN_TEMPLATE


def test_template_that_fails_later_is_a_user_error():
    tokenizer = tokenizer_like("llama")
    tokenizer.chat_template += "{% if 'odd' in messages[0]['content'] %}{{ 1 / 0 }}{% endif %}"
    with pytest.raises(ModelError, match="the chat template failed: ZeroDivisionError"):
        chat_format(tokenizer).opening([Message("user", "odd")], ())
