"""Windows: where texts are cut, and that nothing is missed or inspected again and again."""

from hypothesis import given
from hypothesis import strategies as st

from slipring.core.checks.text_windows import LENGTH, LONGEST, OVERLAP, Window, Windows

PIECES = st.lists(
    st.sampled_from(["a", "b. ", "c\n", "word ", "。", "x" * 30, "y" * 90 + "! ", ""]), max_size=60
)


def cut_all(windows: Windows, pieces: list[str]) -> list[Window]:
    found = []
    for piece in pieces:
        windows.add(piece)
        while (window := windows.cut()) is not None:
            found.append(window)
    last = windows.cut(is_last=True)
    return found if last is None else [*found, last]


def test_a_short_text_is_one_window_when_it_ends():
    windows = Windows()
    windows.add("Hello. ")
    assert windows.cut() is None
    assert windows.pending == 7
    assert windows.cut(is_last=True) == Window("Hello. ", 7)
    assert windows.cut(is_last=True) is None


def test_a_text_is_cut_behind_a_sentence_and_carries_its_end_over():
    first, second = "a" * 210 + ". ", "b" * 20
    windows = Windows()
    windows.add(first + second)
    assert windows.cut() == Window(first, len(first) - OVERLAP)
    assert windows.cut(is_last=True) == Window(first[-OVERLAP:] + second, len(first + second))


def test_a_text_is_cut_where_the_mark_and_the_space_behind_it_come_in_two_pieces():
    windows = Windows()
    for piece in ("a" * 220, ".", " b"):
        windows.add(piece)
    window = windows.cut()
    assert window is not None
    assert window.text.endswith(". ")


def test_without_the_end_of_a_sentence_a_text_is_cut_behind_a_word_or_anywhere():
    words = Windows()
    words.add("word " * 80 + "wor")
    assert words.cut() == Window("word " * 80, 400 - OVERLAP)
    letters = Windows()
    letters.add("x" * (LONGEST - 1))
    assert letters.cut() is None
    letters.add("x")
    assert letters.cut() == Window("x" * LONGEST, LONGEST - OVERLAP)


def test_without_an_overlap_windows_share_nothing():
    assert [window.text for window in cut_all(Windows(overlap=0), ["a" * 210 + "\n", "b"])] == [
        "a" * 210 + "\n",
        "b",
    ]


@given(PIECES, st.integers(1, LENGTH))
def test_windows_cover_a_text_and_every_short_part_of_it_is_in_one_of_them(pieces: list[str], overlap: int):
    text = "".join(pieces)
    found = cut_all(Windows(overlap), pieces)
    joined, ends, settled = "", 0, 0
    for index, window in enumerate(found):
        carried = joined[-overlap:] if index else ""
        assert window.text.startswith(carried)
        joined += window.text[len(carried) :]
        # What is settled is not in the next window: it begins with what is carried over.
        is_last = index == len(found) - 1
        assert window.settled >= settled
        assert window.settled <= len(joined)
        if not is_last:
            assert window.settled == len(joined) - len(joined[-overlap:])
            assert len(joined) - ends >= LENGTH
        ends, settled = len(joined), window.settled
    assert joined == text
    assert sum(len(window.text) for window in found) <= 2 * len(text)
