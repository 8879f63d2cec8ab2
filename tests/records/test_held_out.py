from pathlib import Path

from rlcorr.records.held_out import FILE, HeldOutAnswer, append_answers, read_answers, rewind_answers

FIRST, LATER = (
    HeldOutAnswer(0, "Wie viel ist 3 + 4?", "é 8\nno", 0.0),
    HeldOutAnswer(5, "Wie viel ist 3 + 4?", "7", None),
)


def test_answers_are_read_as_written_without_unfinished_lines(tmp_path: Path) -> None:
    assert read_answers(tmp_path) == []
    append_answers(tmp_path, [FIRST])
    path = tmp_path / FILE
    path.write_text(path.read_text() + '{"step": 5, "prompt": "Wie')
    assert read_answers(tmp_path) == [FIRST]
    append_answers(tmp_path, [LATER])  # ends the unfinished line first
    assert read_answers(tmp_path) == [FIRST, LATER]


def test_a_run_that_goes_on_forgets_what_came_after(tmp_path: Path) -> None:
    append_answers(tmp_path, [FIRST, LATER])
    rewind_answers(tmp_path, 4)
    assert read_answers(tmp_path) == [FIRST]
    rewind_answers(tmp_path, -1)
    assert not (tmp_path / FILE).exists()
