"""The map of keys: like a dictionary, in a fixed amount of memory."""

from hypothesis import given
from hypothesis import strategies as st

from clarion.log.key_map import SLOT_BYTES, KeyMap


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"a", b"a\0", b"", b"\0" * 15, b"\0" * 16])), st.data())
def test_it_answers_like_a_dictionary(keys, draw):
    table, model = KeyMap(10**6, len(keys)), {}
    for offset, key in enumerate(keys):
        table.put(key, offset)
        model[key] = offset
    for key in [*keys, draw.draw(st.binary(max_size=40)), b"absent"]:
        assert table.get(key) == model.get(key, -1)
    assert table.key_count == len(model)


def test_it_says_when_it_is_full_and_still_finds_everything():
    table = KeyMap(SLOT_BYTES * 1000, 10**9)
    count = 0
    while not table.is_full:
        table.put(b"key-%d" % count, count)
        count += 1
    assert 700 < count <= 1000
    assert all(table.get(b"key-%d" % number) == number for number in range(count))
    assert table.get(b"another") == -1


def test_a_small_log_gets_a_small_map():
    assert KeyMap(10**9, 10).keys_max < 20


def test_short_keys_that_differ_by_zeros_are_told_apart():
    table = KeyMap(10**6, 10)
    for offset, key in enumerate([b"", b"\0", b"\0\0", b"a", b"a\0", b"\0" * 15, b"\0" * 16]):
        table.put(key, offset)
    assert table.key_count == 7
