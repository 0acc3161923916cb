"""Files of two runs: what counts as a difference."""

from __future__ import annotations

import pytest

from elastrain_verify.files import difference, present, repeatable, written


def files(tmp_path, run: str, **texts: str):
    folder = tmp_path / run
    folder.mkdir()
    (folder / "data.txt").write_text("given")
    before = present(folder)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return written(folder, before)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("step 1\nstep 2\n", "step 1\nstep 2\n", None),
        ("step 1\nstep 2\n", "step 1\nstep 1\nstep 2\n", ("2 lines, 6 words", "3 lines, 9 words")),
        ("loss 0.12345", "loss 0.12346", None),
        ("loss 0.12345", "loss 0.1298", ("'0.12345' in line 1", "'0.1298'")),
        ("step 1000", "step 1001", ("'1000' in line 1", "'1001'")),
        ("1 ranks", "3 ranks", None),
        ("1 ranks", "2 ranks", ("'1' in line 1", "'2'")),
        ("best a", "best b", ("'a' in line 1", "'b'")),
        ("", "", None),
    ],
)
def test_texts_differ_by_words_lines_and_numbers_beyond_rounding(tmp_path, one, other, found) -> None:
    apart = difference(files(tmp_path, "one", log=one), files(tmp_path, "other", log=other), ranks=3)
    assert (apart and (apart.expected, apart.found)) == found


def test_only_the_number_of_words_is_compared_if_the_states_may_differ(tmp_path) -> None:
    one, other = files(tmp_path, "one", log="loss 0.5"), files(tmp_path, "other", log="loss 0.6")
    assert difference(one, other, ranks=2, words=False) is None
    assert difference(one, files(tmp_path, "third", log="loss 0.6 0.7"), ranks=2, words=False) is not None


def test_a_file_that_the_job_does_not_write_is_a_difference_and_one_that_only_it_writes_is_none(tmp_path) -> None:
    reference, job = files(tmp_path, "one", model="x"), files(tmp_path, "other", rank1="x")
    assert difference(reference, job, ranks=2).name == "model"
    assert difference({}, job, ranks=2) is None


def test_what_two_references_write_differently_is_not_compared(tmp_path) -> None:
    one = files(tmp_path, "one", log="2026-01-02 12:03:04.5 took 7 s, loss 0.5", id17="x")
    other = files(tmp_path, "two", log="2026-01-02 12:03:09 took 8 s, loss 0.5", id18="x")
    expected = repeatable(one, other)
    assert set(expected) == {"log"}
    job = files(tmp_path, "job", log="2026-01-03 00:01:00 took 9 s, loss 0.5")
    assert difference(expected, job, ranks=2) is None
    job = files(tmp_path, "job2", log="2026-01-03 00:01:00 took 9 s, loss 0.6")
    assert difference(expected, job, ranks=2).found == "'0.6'"
