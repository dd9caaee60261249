"""Bytes on their way through a port, against a queue that holds the number of a frame for each byte."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from link1.channels import InFlight, Outgoing
from link1.frames import Channel
from link1.port_queue import PortQueue


class PlainQueue:
    """Slow, and plain to see."""

    def __init__(self) -> None:
        self.unwritten: list[int] = []
        self.inside: list[int] = []
        self.endings: dict[int, InFlight | None] = {}
        self.zero_first = False
        self.number = 0

    def opened(self) -> None:
        self.unwritten, self.inside, self.endings, self.zero_first = [], [], {}, True

    def put(self, size: int, ending: InFlight | None) -> None:
        self.number += 1
        self.unwritten += [self.number] * (size + self.zero_first)
        self.zero_first = False
        self.endings[self.number] = ending

    def wrote(self, count: int) -> None:
        self.inside += self.unwritten[:count]
        del self.unwritten[:count]

    def give_up(self) -> None:
        self.zero_first = self.zero_first or bool(self.unwritten)
        for number in self.unwritten:
            self.endings.pop(number, None)
        self.unwritten = []
        self.endings = dict.fromkeys(self.endings)

    def departed(self, held: int) -> list[InFlight]:
        del self.inside[: len(self.inside) - held]
        left = [number for number in self.endings if number not in {*self.inside, *self.unwritten}]
        return [ending for number in left if (ending := self.endings.pop(number)) is not None]

    def taken(self) -> list[int]:
        return [number for number in self.endings if number in self.inside and number not in self.unwritten]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("pppwwwddgo"), st.integers(0, 30), st.booleans()), max_size=40))
@example([("p", 4, True), ("p", 4, True), ("w", 5, False), ("g", 0, False)])  # one inside, one unwritten
def test_any_course_of_writes_and_drops_is_accounted_for(steps: list[tuple[str, int, bool]]) -> None:
    queue, plain = PortQueue(), PlainQueue()
    for step, size, ends in steps:
        match step:
            case "p":
                ending = InFlight(Channel.CONTROL, Outgoing("x", b"x"), size, [b"x"]) if ends else None
                queue.put(b"\x07" * (size + 1), ending)
                plain.put(size + 1, ending)
            case "w":
                count = min(size, len(plain.unwritten))
                queue.wrote(count)
                plain.wrote(count)
            case "d":
                held = min(size, len(plain.inside))
                assert queue.departed(held) == plain.departed(held)
            case "g":
                queue.give_up()
                plain.give_up()
            case _:
                queue.opened()
                plain.opened()
        assert len(queue.unwritten) == len(plain.unwritten)
        assert queue.frames_unsent == len(plain.endings)
        assert queue.frames_inside == len(plain.taken())
        assert queue.message_inside == any(plain.endings[number] is not None for number in plain.taken())


def test_a_zero_goes_before_the_first_frame_and_before_one_behind_a_torn_one() -> None:
    queue = PortQueue()
    queue.opened()
    queue.put(b"\x01\x00", None)
    queue.put(b"\x02\x00", None)
    assert queue.unwritten == b"\x00\x01\x00\x02\x00"
    queue.wrote(4)
    queue.give_up()
    queue.put(b"\x03\x00", None)
    assert queue.unwritten == b"\x00\x03\x00"
    queue.wrote(3)
    queue.give_up()
    queue.put(b"\x04\x00", None)
    assert queue.unwritten == b"\x04\x00", "nothing was torn"
