from typing import Any

import pytest

from envs.toy import ToyFactory
from seeupo.envs.options import check_options
from seeupo.errors import EnvError


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 3}, {"scale": 2}, {"scale": 0.5}, {"mood": "wild"}, {"note": None}, {"note": "x", "size": 1}],
)
def test_options_that_fit(options):
    check_options(ToyFactory, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise": 3}, "option sise=3: there is no option 'sise'; did you mean 'size'?"),
        ({"zzz": 3}, "option zzz=3: there is no option 'zzz'; there are: size, scale, mood"),
        ({"size": "3"}, "option size='3': int is accepted"),
        ({"size": True}, "option size=True: int is accepted"),
        ({"size": 3.0}, "option size=3.0: int is accepted"),
        ({"scale": "big"}, "option scale='big': float is accepted"),
        ({"scale": True}, "option scale=True: float is accepted"),
        ({"mood": "sad"}, "option mood='sad': 'calm' or 'wild' is accepted"),
        ({"note": 3}, "option note=3: str or None is accepted"),
        ({"expert_knows": 1}, "option expert_knows=1: bool is accepted"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(EnvError) as raised:
        check_options(ToyFactory, options)
    assert message in str(raised.value)


def test_an_option_without_default_is_needed():
    class Needy:
        def __init__(self, *, path: str) -> None: ...

    with pytest.raises(EnvError, match="option 'path' is needed"):
        check_options(Needy, {})


def test_a_factory_without_options():
    class Plain: ...

    check_options(Plain, {})
    with pytest.raises(EnvError, match="there are: none"):
        check_options(Plain, {"size": 1})


def test_annotations_that_say_too_little_accept_anything():
    class Loose:
        def __init__(self, anything: Any = None, words: list[str] | None = None, bare=0) -> None: ...

    check_options(Loose, {"anything": object(), "words": ["a"], "bare": "x"})
