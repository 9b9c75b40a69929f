import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.examples import engine
from models.examples import SHAPE, small_model
from seeupo.config.loader import read_recipe, recipe_names
from seeupo.config.model_settings import LoraSettings, ModelSettings, TinySettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.errors import ModelError
from seeupo.models.lora.adapters import add_adapters
from seeupo.models.tiny import tiny_model, tiny_tokenizer
from seeupo.planning.shapes import KNOWN_SHAPES, shape_from_config, shape_of
from seeupo.planning.stored_models import shape_of_model


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-14B", 14.77), ("Qwen/Qwen2.5-14B-Instruct", 14.77), ("Qwen/Qwen3-1.7B", 1.72)],
)
def test_built_in_shapes_have_the_published_number_of_parameters(name, billions):
    shape = shape_of(ModelSettings(name=name))
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.01)
    assert shape.outer_parameters + shape.layers * shape.layer_parameters == shape.parameters
    assert shape.query_norms == ("Qwen3" in name)


@pytest.mark.parametrize("name", KNOWN_SHAPES)
def test_shapes_of_the_table_are_those_of_transformers(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**KNOWN_SHAPES[name]))
    assert shape_from_config(KNOWN_SHAPES[name], "table") == shape_of_model(model, "table")


@pytest.mark.parametrize(
    ("tiny", "words"),
    [(TinySettings(), ("open", "user", "door")), (TinySettings(width=48, layers=2, heads=2, words=False), ())],
)
def test_the_shape_of_tiny_is_that_of_the_model_that_is_made(tiny, words):
    config = tiny.config(words=words)
    model = tiny_model(config, tiny_tokenizer(config))
    assert shape_of(ModelSettings(tiny=tiny), words) == shape_of_model(model, "the recipe")


def test_the_models_of_all_recipes_have_a_shape_without_a_network():
    models = {read_recipe(name).model.name for name in recipe_names()}
    hub_names = {name for name in models if "/" in name and not name.startswith("runs/")}  # "runs/": of another recipe
    assert hub_names <= KNOWN_SHAPES.keys()


def test_a_folder_gives_the_shape_of_its_configuration(tmp_path):
    model = small_model("qwen3")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    shape = shape_of(ModelSettings(name=str(tmp_path / "model")))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (shape.hidden, shape.layers) == (SHAPE["hidden_size"], SHAPE["num_hidden_layers"])


def test_an_unknown_model_is_a_user_error():
    with pytest.raises(ModelError, match="unknown model 'tinny'"):
        shape_of(ModelSettings(name="tinny"))


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("targets", [LoraSettings().targets, ("q_proj",)])
def test_adapters_are_counted(targets, layers):
    model, lora = small_model(), LoraSettings(rank=3, targets=targets, layers=layers)
    shape = shape_of_model(model, "test")
    add_adapters(model, lora)
    expected = sum(parameter.numel() for name, parameter in model.named_parameters() if "lora_" in name)
    assert sum(shape.trained_sizes(ModelSettings(lora=lora), OptimizerSettings())) == expected


@pytest.mark.parametrize(
    ("lora", "trainable"),
    [
        (None, ()),
        (None, (r"layers\.1\.", "lm_head")),
        (None, ("embed", r"layers\.1\.")),
        (None, ("lm_head",)),
        (LoraSettings(rank=2), ()),
        (LoraSettings(rank=2, layers=1), ()),
    ],
)
def test_the_trunk_is_that_of_an_engine(lora, trainable):
    settings = OptimizerSettings(trainable=trainable)
    shape = shape_of_model(small_model(), "test")
    local = engine(lora=lora, trainable=trainable)
    trunk = local._batches.trunk
    assert shape.trunk_layers(ModelSettings(lora=lora), settings) == (0 if trunk is None else trunk.layers)


def test_trainable_patterns_select_weights():
    shape = shape_of_model(small_model(), "test")
    settings = OptimizerSettings(trainable=("lm_head",))
    assert shape.trained_sizes(ModelSettings(), settings) == [shape.sizes["lm_head.weight"]]
