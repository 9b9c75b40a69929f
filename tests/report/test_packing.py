import json
import math
import zlib

import pytest

from seeupo.report.packing import base64_size, json_bytes, packed, rounded
from seeupo.utils.numbers import finite_number


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, -math.inf, [1], 10**400])
def test_what_is_no_finite_number_is_none(value):
    assert finite_number(value) is None
    assert rounded(value) is None


def test_numbers_keep_five_significant_digits():
    assert rounded(-2.781517949836592) == -2.7815
    assert rounded(1.23456789e-7) == 1.2346e-07
    assert str(rounded(-0.0)) == "0.0"


def test_halves_of_characters_are_replaced_and_whole_ones_stay():
    assert json.loads(json_bytes(["a\ud83d", "\udc00b", "🙂", "\x00"])) == ["a\ufffd", "\ufffdb", "🙂", "\x00"]


def test_the_same_value_gives_the_same_bytes_with_no_date_in_them():
    content = packed({"a": [1, None, "é"]})
    assert content == packed({"a": [1, None, "é"]})
    assert content[4:8] == bytes(4)
    assert json.loads(zlib.decompress(content, 31)) == {"a": [1, None, "é"]}


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 4), (3, 4), (4, 8)])
def test_size_in_base64(count, size):
    assert base64_size(count) == size
