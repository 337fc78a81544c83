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
