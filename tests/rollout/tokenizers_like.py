"""Tokenizers with chat templates that behave like those of common model families."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from seeupo.config.model_settings import TinyConfig
from seeupo.models.tiny import tiny_tokenizer

LLAMA = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|header|>' + message['role'] + '<|/header|>\n\n' + message['content'] | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"
)
QWEN25 = (
    "{% if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\n' + messages[0]['content'] }}"
    "{% else %}{{ '<|im_start|>system\nYou help.' }}{% endif %}"
    "{% if tools %}{{ '\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif message.tool_calls %}{{ '<|im_start|>assistant' }}"
    "{% if message['content'] %}{{ '\n' + message['content'] }}{% endif %}{% for call in message.tool_calls %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message['role'] != 'system' or not loop.first %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = QWEN25.replace(
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}",
    "{% set content = message['content'].split('</think>')[-1].lstrip('\n') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endif %}{% endfor %}",
).replace(
    "{{ '<|im_start|>assistant\n' }}{% endif %}", "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
COUNTING = (
    "{% for message in messages %}{{ loop.index ~ '/' ~ messages | length ~ message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)
"""A template that numbers all messages, so that every new message changes the earlier text."""
STRICT = (
    "{% for message in messages %}{% if message['role'] not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('only user, assistant and system') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {"llama": LLAMA, "qwen2.5": QWEN25, "qwen3": QWEN3, "none": None, "strict": STRICT}


def tokenizer_like(name: str) -> PreTrainedTokenizerFast:
    corpus = ["the cat sat on the mat and that is that", "user assistant system tool think thinking"] * 3
    tokenizer = tiny_tokenizer(TinyConfig(corpus=corpus, vocabulary=400))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|begin|>", "<|header|>", "<|/header|>"]})
    tokenizer.chat_template = COUNTING if name == "counting" else TEMPLATES[name]
    return tokenizer
