"""What is learnt of answers for hints."""

from slipring.engines.scheduling.priorities_and_hints import AnswerLengths


def test_the_length_of_answers_is_learnt_and_bounded_by_what_is_asked_for() -> None:
    lengths = AnswerLengths()
    assert (lengths.expected(10_000), lengths.expected(20)) == (256, 20)
    for _ in range(200):
        lengths.observe(1000)
    assert 950 < lengths.expected(10_000) <= 1000
    for _ in range(500):
        lengths.observe(0)
    assert lengths.expected(10_000) == 1
