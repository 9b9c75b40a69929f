from seeupo.config.model_settings import TinyConfig
from seeupo.engines.model_check import generate_answer
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model


def test_a_model_without_a_chat_template_answers(tmp_path):
    policy = load_policy("tiny", tiny=TinyConfig(width=32, layers=1, heads=2))
    policy.tokenizer.chat_template = None
    save_model(policy.model, policy.tokenizer, tmp_path)
    answer = generate_answer(str(tmp_path), "hello", max_tokens=4)
    assert 1 <= answer.tokens <= 4
    assert answer.packing == "tree"
