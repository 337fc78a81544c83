from clarion.log.room import DEFAULT_RESERVE_MAX, Room


def reserve_of(configured, total):
    room = Room(configured)
    room.note(total, total)
    return room.reserve_bytes


def test_the_reserve_is_a_gigabyte_or_a_twentieth_of_a_small_disk():
    assert reserve_of(-1, 1 << 42) == DEFAULT_RESERVE_MAX
    assert reserve_of(-1, 4 << 20) == (4 << 20) // 20
    assert reserve_of(123, 1 << 42) == 123


def test_without_a_reserve_room_is_never_short():
    room = Room(0)
    assert not room.note(0, 100)
    assert not room.is_short


def test_only_changes_are_told():
    room = Room(100)
    assert [room.note(free, 1000) for free in (100, 99, 50, 111, 112, 112)] == [False, True, False, False, True, False]


def test_a_batch_that_is_too_large_is_named_and_all_messages_only_below_the_reserve():
    room = Room(100)
    room.note(150, 1000)
    room.refused_bytes = 60
    assert "150 bytes were free at the last look, 100 are kept" in room.sentence
    assert "a batch of 60 bytes is not taken until there is room" in room.sentence
    room.note(150, 1000)
    assert room.is_short
    assert "a batch of 60 bytes is not taken" in room.sentence
    room.note(99, 1000)
    assert "no messages are taken" in room.sentence
