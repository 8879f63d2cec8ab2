"""Files that a person drops: shown in every view, or refused in one sentence."""

import io
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from app_pages import chosen, line_and_state, links, one_scan, open_app, open_view, pictures, root, said, shown, widget
from app_runs import make_run
from streamlit.testing.v1 import AppTest

from rlcorr.records.disk import CannotWrite

__all__ = ["one_scan", "root"]  # fixtures

OLD, ROLLOUT = [[-1.0, -2.0, -0.5], [-0.25]], [[-1.5, -2.0, -0.25], [-1.0]]
BOX = "views/yours.py"
VIEWS = ("training", "bench", "gradient", "tokens")


def npz() -> bytes:
    """Two responses of three tokens and one, padded."""
    mask = np.array([[1, 1, 1], [1, 0, 0]], bool)
    old, rollout = (np.array([v[0], [*v[1], 0.0, 0.0]], np.float32) for v in (OLD, ROLLOUT))
    file = io.BytesIO()
    np.savez(file, response_mask=mask, old_log_probs=old, rollout_log_probs=rollout)
    return file.getvalue()


def jsonl(**more: str) -> bytes:
    rows = [{"old_log_probs": o, "rollout_log_probs": r, **more} for o, r in zip(OLD, ROLLOUT, strict=True)]
    return "\n".join(map(json.dumps, rows)).encode()


def drop(at: AppTest, name: str, content: bytes) -> AppTest:
    widget(at.file_uploader, "dropped").set_value([(name, content, "application/octet-stream")]).run()
    assert not at.exception
    return at


@pytest.mark.parametrize(("name", "content"), [("pairs.npz", npz()), ("pairs.jsonl", jsonl())])
def test_every_view_shows_a_dropped_file(root: Path, name: str, content: bytes) -> None:
    make_run(root, "alpha", steps=1)
    at = drop(open_app(BOX), name, content)
    text = said(at)
    assert "Read 2 answers with 4 tokens; every view shows them now." in text
    assert "advantages (rules for one sign of the advantage" in text
    slug = chosen(at, "run")
    assert slug.startswith("upload_")
    for view in VIEWS:
        at = open_app(view, run=slug)
        line, state = line_and_state(at).split(" | ")
        assert line.startswith(f"{name} · step 1"), view
        assert state == "1 step recorded · complete", view  # the name of the file is in the line already
        if view == "bench":
            d = np.array([0.5, 0.0, -0.25, 0.75])
            assert shown(at)["Mean |Δ| before"] == f"{np.abs(d).mean():.4g}"
            assert shown(at)["k3 before"] == f"{(np.exp(d) - 1 - d).mean():.4g}"
        if view == "gradient":
            assert "log-probs alone do not give one a gradient" in said(at)
            assert "--sketch" not in said(at)
            assert [link["label"] for link in links(at)] == ["Open the bench", "Open a recorded run"]
        if view == "training":
            assert not pictures(at)


def test_a_file_counts_more_than_an_address_that_comes_with_it(root: Path) -> None:
    """A restarted server gets both in its first run: the file, and the address of one that it has lost."""
    make_run(root, "alpha", steps=1)
    at = open_app(BOX, run="alpha", step="0")
    at.query_params["run"] = "upload_lost"
    drop(at, "mine.jsonl", jsonl())
    slug = chosen(at, "run")
    assert slug.startswith("upload_")
    assert slug != "upload_lost"
    assert at.query_params["run"] == slug
    assert not at.warning


def drop_all(at: AppTest, *files: tuple[str, bytes]) -> AppTest:
    widget(at.file_uploader, "dropped").set_value([(*file, "application/octet-stream") for file in files]).run()
    assert not at.exception
    return at


def step_of(number: int) -> bytes:
    """One response of one token, whose ratio says which file it was."""
    return json.dumps({"old_log_probs": [-1.0], "rollout_log_probs": [-1.0 - number], "step": number}).encode()


def test_a_run_belongs_to_its_session(root: Path) -> None:
    """Check the same file in two sessions, the same bytes under another name, and bytes that are split elsewhere."""
    make_run(root, "alpha", steps=1)
    one, two = step_of(1), step_of(2)
    sessions = [
        drop(open_app(BOX), "a_1.jsonl", one), drop(open_app(BOX), "a_1.jsonl", one),
        drop(open_app(BOX), "b_1.jsonl", one), drop_all(open_app(BOX), ("a.jsonl", one), ("b.jsonl", two)),
        drop_all(open_app(BOX), ("a.jsonl", one + b"\n" + two)),
    ]  # fmt: skip
    slugs = [chosen(at, "run") for at in sessions]
    assert len(set(slugs)) == len(slugs)
    at = drop(sessions[0], "a_1.jsonl", one)  # again in the same session
    assert chosen(at, "run") == slugs[0]
    assert at.session_state["uploads"] == slugs[:1]


def test_the_oldest_run_makes_room_and_old_ones_expire(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(root, "alpha", steps=1)
    at, slugs = open_app(BOX), []
    from data import uploads  # in the app's folder, which is on the path now

    monkeypatch.setattr(uploads, "QUOTA", 2)
    for number in (1, 2, 3):
        slugs.append(chosen(drop(at, f"a_{number}.jsonl", step_of(number)), "run"))
    assert at.session_state["uploads"] == slugs[1:]
    assert f"unknown run '{slugs[0]}'" in said(open_app("views/bench.py", run=slugs[0]))
    assert line_and_state(open_app("views/bench.py", run=slugs[1])).startswith("a_2.jsonl · step 2")
    monkeypatch.setattr(uploads, "EXPIRY", -1.0)
    drop(open_app(BOX), "b.jsonl", step_of(4))
    assert f"unknown run '{slugs[1]}'" in said(open_app("views/bench.py", run=slugs[1]))


def test_a_file_that_fails_leaves_nothing(root: Path) -> None:
    """Check a file whose second step is damaged after the first one was written."""
    make_run(root, "alpha", steps=1)
    at = open_app(BOX)
    from data import uploads

    before = set(Path(uploads.folder().name).iterdir())
    drop(at, "a.jsonl", step_of(1) + b"\n" + step_of(2).replace(b"-3.0", b"NaN"))
    assert at.error
    assert set(Path(uploads.folder().name).iterdir()) == before


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a folder for temporary files that takes none, and a disk that is full just before a run has its name."""
    make_run(root, "alpha", steps=1)
    at = open_app(BOX)
    from data import uploads

    before = set(Path(uploads.folder().name).iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        drop(at, "a.jsonl", step_of(1))
        assert "the folder for temporary files cannot be written" in said(at)

    def full(path: Path, _: bytes) -> None:
        raise CannotWrite(f"{path.name} cannot be written: No space left on device.")

    monkeypatch.setattr(uploads, "write_whole", full)
    drop(at, "b.jsonl", step_of(2))
    assert f"{uploads.NAME_FILE} cannot be written" in said(at).replace("\\", "")
    assert set(Path(uploads.folder().name).iterdir()) == before


REFUSED = [
    ("pairs.npz", b"PK\x03\x04 cut off", "pairs.npz"),
    ("pairs.json", b"\x80\x04}q\x00.", "pickle"),
    ("pairs.jsonl", b'{"old_log_probs": [-1.0]}', "rollout_log_probs"),
    ("pairs.jsonl", b'{"old_log_probs": [NaN], "rollout_log_probs": [-1.0]}', "row 0, token 0"),
    ("pairs.npz", b"", "is empty"),
    ("pairs.zip", b"PK\x03\x04", "this one ends in '.zip'. Unpack it"),
    ("pairs.csv", b"old,rollout", "this one ends in '.csv'. A cell of such a table holds no list"),
    ("pairs.txt", b"-1", "this one ends in '.txt'. If each line is a JSON object"),
    ("pairs", b"-1", "this one ends in ''"),
]


def test_a_file_that_cannot_be_read_says_why(root: Path) -> None:
    """In one session, one after the other; last a wrong file among others, and two files of one name."""
    make_run(root, "alpha", steps=1)
    at = open_app(BOX)
    for name, content, expected in REFUSED:
        drop(at, name, content)
        assert expected in "\n".join(error.value for error in at.error).replace("\\", ""), name
        assert chosen(at, "run") == "example", name
        assert "Nothing was read. Drop another file." in said(at), name
        assert not copied(at), name
    drop_all(at, ("a.jsonl", step_of(1)), ("b.csv", b"1"))
    assert "'b.csv': files that end in" in said(at)
    drop_all(at, ("batch.jsonl", step_of(1)), ("batch.jsonl", step_of(2)))
    assert "two files are named 'batch.jsonl': rename one" in said(at)


def test_what_is_left_out_and_what_is_clamped_is_said(root: Path) -> None:
    """A version that is a text, and a log-prob that bfloat16 rounded above 0, which is read if the box is ticked."""
    make_run(root, "alpha", steps=1)
    content = b'{"old_log_probs": [-1.0], "rollout_log_probs": [0.125], "weight_version": "<b>v12</b>"}'
    at = drop(open_app(BOX), "pairs.jsonl", content)
    assert "row 0, token 0" in "\n".join(error.value for error in at.error)
    widget(at.checkbox, "clamp_rounding").check().run()
    assert not at.exception
    assert not at.error
    text = said(at)
    assert "Read 1 answers with 1 tokens" in text
    assert "policy_versions is left out" in text.replace("\\", "")


def test_rows_without_log_probs_and_shards_of_a_step_are_read_if_their_boxes_are_ticked(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    aborted = json.dumps({"old_log_probs": OLD[0], "rollout_log_probs": []}).encode()
    at = open_app(BOX)
    assert not [box for box in at.checkbox if "--" in box.label]  # nothing is refused, so nothing is to be repaired
    shards = [(f"step_1_shard_{n}.jsonl", jsonl() + b"\n" * n + aborted * n, "application/jsonl") for n in (0, 1)]
    widget(at.file_uploader, "dropped").set_value(shards).run()
    assert "--leave-out-aborted" in at.error[0].value.replace("\\", "")
    widget(at.checkbox, "leave_out_aborted").check().run()
    assert "--join merges them" in at.error[0].value.replace("\\", "")
    widget(at.checkbox, "join").check().run()
    assert not at.error
    text = said(at)
    assert "Read 4 answers with 8 tokens" in text
    assert "1 of 5 answers has no log-prob" in text.replace("\\", "")


def copied(at: AppTest) -> list[str]:
    """Return the configurations to copy, without the lines that say how to record."""
    return [block.value for block in at.code if "made with rlcorr" in block.value]


def files_of(at: AppTest) -> str:
    """Return the line to which the box folds, or its title."""
    return at.expander[0].label.replace("\\", "")


def is_open(at: AppTest) -> bool:
    return bool(at.expander[0].proto.expanded)


def test_what_a_reload_shows_again_stays_in_the_list(root: Path) -> None:
    """A reload makes a new session; only the address tells it which file was dropped before."""
    make_run(root, "alpha", steps=1)
    first = chosen(drop(open_app(BOX), "first.jsonl", jsonl()), "run")
    at = drop(open_app(BOX, run=first), "second.npz", npz())
    assert chosen(at, "run") != first
    open_view(at, BOX, run=chosen(at, "run"))
    several = drop_all(open_app(BOX), ("b.jsonl", step_of(2)), ("a.jsonl", step_of(1)))
    from data import uploads

    assert uploads.shown_name(chosen(several, "run")) == "a.jsonl and 1 more"
    assert any("first.jsonl" in option for option in widget(at.selectbox, "run").options)


def test_a_good_a_bad_and_a_good_file_in_one_session(root: Path) -> None:
    """Check that nothing of the run before is next to a refusal, and that the next file has nothing of the refusal."""
    make_run(root, "alpha", steps=1)
    at = open_app(BOX)
    assert "As an example, the page shows the recorded run **alpha**." in said(at)
    drop(at, "first.jsonl", jsonl())
    first = chosen(at, "run")
    assert files_of(at) == "first.jsonl: 2 answers, 4 tokens"
    assert not is_open(at)
    assert copied(at)
    drop(at, "table.csv", b"old,rollout")
    assert "'table.csv': files that end in" in said(at)
    assert files_of(at) == "Drop your files here"
    assert is_open(at)
    assert not copied(at)
    for sentence in ("As an example", "Not in the file", "k3", "Take"):
        assert sentence not in said(at)
    widget(at.selectbox, "run").set_value("alpha").run()  # somebody looks at another run instead
    assert "As an example, the page shows the recorded run **alpha**." in said(at)
    drop(at, "second.npz", npz())
    assert not at.error
    assert chosen(at, "run") not in ("alpha", first)
    assert files_of(at) == "second.npz: 2 answers, 4 tokens"
    assert copied(at)


def test_large_steps_take_turns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told so, a small step does not wait, and a turn that fails ends."""
    make_run(root, "alpha", steps=1)
    open_app(BOX)
    from data import queueing

    told = threading.Event()
    monkeypatch.setattr(queueing.st, "toast", lambda *_, **__: told.set())
    monkeypatch.setattr(queueing, "SECONDS", 600)  # it ends when its turn comes, not when it looks again
    order = list[str]()

    def later() -> None:
        with queueing.turn(queueing.LARGE + 1):
            order.append("second")

    second = threading.Thread(target=later)
    with suppress(ZeroDivisionError), queueing.turn(queueing.LARGE + 1):
        second.start()
        assert told.wait(300)
        with queueing.turn(queueing.LARGE):
            order.append("small")
        order.append("first")
        raise ZeroDivisionError
    second.join(300)
    assert order == ["small", "first", "second"]


def test_an_import_and_a_page_wait_for_their_turn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(root, "alpha", steps=1)  # 24 answers of at most 16 tokens
    at = open_app(BOX)
    from data import queueing

    sizes = list[int]()

    @contextmanager
    def counted(positions: int) -> Iterator[None]:
        sizes.append(positions)
        yield

    monkeypatch.setattr(queueing, "turn", counted)
    drop(at, "a.jsonl", jsonl())  # two answers of at most three tokens: its import, and its page
    assert sizes == [6, 6]
    open_app("views/bench.py", run="alpha")
    open_app("views/training.py", run="alpha")  # it shows no step
    assert sizes[2:] == [24 * 16, 0]
