from typing import Any

import pytest

from envs.toy import ToyFactory
from seeupo.envs.options import check_options
from seeupo.errors import EnvError


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 3}, {"scale": 2}, {"scale": 0.5}, {"mood": "wild"}, {"note": None}, {"note": "x", "size": 1}],
)
def test_valid_options_are_accepted(options):
    check_options(ToyFactory, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise": 3}, "option sise=3: there is no option 'sise'; did you mean 'size'?"),
        ({"zzz": 3}, "option zzz=3: there is no option 'zzz'; available: size, scale, mood"),
        ({"size": "3"}, "option size='3': expected int"),
        ({"size": True}, "option size=True: expected int"),
        ({"size": 3.0}, "option size=3.0: expected int"),
        ({"scale": "big"}, "option scale='big': expected float"),
        ({"scale": True}, "option scale=True: expected float"),
        ({"mood": "sad"}, "option mood='sad': expected 'calm' or 'wild'"),
        ({"note": 3}, "option note=3: expected str or None"),
        ({"has_expert": 1}, "option has_expert=1: expected bool"),
    ],
)
def test_invalid_options_are_errors(options, message):
    with pytest.raises(EnvError) as raised:
        check_options(ToyFactory, options)
    assert message in str(raised.value)


def test_an_option_without_default_is_required():
    class Needy:
        def __init__(self, *, path: str) -> None: ...

    with pytest.raises(EnvError, match="option 'path' is required"):
        check_options(Needy, {})


def test_a_factory_without_options():
    class Plain: ...

    check_options(Plain, {})
    with pytest.raises(EnvError, match="available: none"):
        check_options(Plain, {"size": 1})


def test_annotations_that_cannot_be_checked_accept_anything():
    class Loose:
        def __init__(self, anything: Any = None, words: list[str] | None = None, bare=0) -> None: ...

    check_options(Loose, {"anything": object(), "words": ["a"], "bare": "x"})
