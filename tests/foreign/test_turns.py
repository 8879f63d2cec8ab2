"""Turns of an agent and versions per token. Lists of lists in an object are turns of one response or many responses;
other keys of the object decide."""

from typing import Any

import pytest
import torch
from hostile_files import saved
from pair_files import jsonl, parquet, read_pairs, real, refused

from rlcorr.records.step_files import StepRecord

# Two trajectories of two and three turns, and two of two turns each.
UNEVEN = [[[-0.5, -0.25], [-0.125]], [[-1.0], [-0.75], [-2.0]]]
EVEN = [[[-0.5, -0.25], [-0.125]], [[-1.0], [-0.75]]]
CASES = {"uneven": UNEVEN, "even": EVEN, "one": UNEVEN[:1], "one turn each": [[[-0.5]], [[-1.0]]]}


def joined(objects: list[list[list[float]]]) -> list[list[float]]:
    return [[x for turn in turns for x in turn] for turns in objects]


def both(lists: list[Any], **more: list[Any]) -> list[dict[str, Any]]:
    """Return an object per entry of `lists`, which are both log-probs, with further columns."""
    columns = {"rollout_logprobs": lists, "old_log_probs": lists, **more}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def files(objects: list[dict[str, Any]]) -> dict[str, bytes]:
    tensors = [{name: as_tensors(x) for name, x in row.items()} for row in objects]
    return {"x.jsonl": jsonl(objects), "x.pt": saved(tensors)}


def as_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [as_tensors(x) for x in value] if isinstance(value[0], list) else torch.tensor(value)
    return value


@pytest.mark.parametrize("case", CASES)
def test_one_reward_makes_turns_of_the_lists(case: str) -> None:
    """Read turns, also if all lines have the same number of turns, and in a single line."""
    objects, rewards = CASES[case], [1.0, 0.0][: len(CASES[case])]
    ids, mask = ([[[number for _ in turn] for turn in turns] for turns in objects] for number in (7, 1))
    for file, content in files(both(objects, reward=rewards, response_ids=ids, loss_mask=mask)).items():
        record = read_pairs(file, content)
        assert real(record.batch.rollout_log_probs, record) == joined(objects), file
        assert real(record.batch.tensors()["old_log_probs"], record) == joined(objects), file
        assert record.batch.tensors()["rewards"].tolist() == rewards, file
        assert record.batch.tensors()["response_ids"].sum() == 7 * sum(map(len, joined(objects))), file
        turns = [[turn for turn, numbers in enumerate(one) for _ in numbers] for one in objects]
        assert real(record.batch.tensors()["turn_ids"], record) == turns, file


@pytest.mark.parametrize("case", CASES)
def test_a_list_per_response_makes_responses_of_the_lists(case: str) -> None:
    objects = CASES[case]
    apart = [turn for turns in objects for turn in turns]
    rewards = [[float(i) for i in range(len(one))] for one in objects]
    for more in ({"rewards": rewards}, {"lengths": [[len(turn) for turn in one] for one in objects]}):
        for file, content in files(both(objects, **more)).items():
            record = read_pairs(file, content)
            assert real(record.batch.rollout_log_probs, record) == apart, file
            if "rewards" in more:
                assert record.batch.tensors()["rewards"].tolist() == [r for row in rewards for r in row], file


def test_a_plain_row_next_to_turns_has_one_turn() -> None:
    """A trajectory without a tool call is often written as a plain list."""
    lines = both([[[-0.5, -0.25], [-0.125]], [-1.0, -0.75]], reward=[1.0, 0.0])
    record = read_pairs("x.jsonl", jsonl(lines))
    assert real(record.batch.tensors()["turn_ids"], record) == [[0, 0, 1], [0, 0]]
    assert record.notes == ()


def test_where_nothing_says_it_the_file_is_refused() -> None:
    for case, objects in {
        "nothing": both(UNEVEN), "even": both(EVEN), "one line": both(UNEVEN[:1]),
        "null": both(UNEVEN, reward=[None, None]), "an id of the prompt": both(UNEVEN, group_id=[1, 2]),
        "contradiction": both(UNEVEN, reward=[1.0, 1.0], group_ids=[[1, 1], [2, 2, 2]]),
    }.items():  # fmt: skip
        for file, content in files(objects).items():
            said = refused(file, content)
            assert "which may be as many responses or the turns of one" in said, (case, file)
            assert "Add one reward (a number) for turns, or a list of rewards" in said, (case, file)
    said = refused("x.parquet", parquet(rollout_log_probs=UNEVEN, old_log_probs=UNEVEN))
    assert "rollout_log_probs is a column of list<" in said
    assert "JSON Lines may hold lists of lists and objects, too" in said


def test_turns_that_do_not_fit_each_other() -> None:
    """Refuse turns of other lengths, although the number of tokens is the same: tokens would be paired wrongly."""
    lines = both(UNEVEN, reward=[1.0, 0.0], input_ids=[[[1, 1, 1], [1, 1]], [[1], [1], [1]]])
    assert read_pairs("x.jsonl", jsonl(lines)).notes[0].startswith("token_ids is left out: ")
    lines[0]["old_log_probs"] = [[-0.5], [-0.25, -0.125]]
    said = refused("x.jsonl", jsonl(lines))
    assert "the turns of rollout_logprobs have [2, 1] tokens, those of old_log_probs [1, 2]" in said


# --- numbers per token, as other systems write them ---

OLD = [[-1.0, -1.0, -1.0, -1.0, -1.0], [-2.0, -2.0, -2.0]]
ROLLOUT = [[-1.1, -1.2, -1.1, -1.0, -1.3], [-2.0, -2.1, -2.2]]


def read(**columns: list[Any]) -> StepRecord:
    rows = {"old_log_probs": OLD, "rollout_log_probs": ROLLOUT} | columns
    return read_pairs(
        "x.jsonl", jsonl([dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)])
    )


PER_TOKEN = [[4, 4, 5, 5, 6], [5, 5, 5]]


@pytest.mark.parametrize(
    ("columns", "field", "expected"),
    [
        # A response that was interrupted by a sync goes on with newer weights. AReaL calls the column `versions`.
        *(({name: PER_TOKEN}, "policy_versions", PER_TOKEN) for name in ("versions", "policy_versions")),
        # AReaL writes -1 for tokens that no policy sampled.
        (
            {"versions": [[4, 4, -1, 5, 5], [5, 5, 5]], "loss_mask": [[1, 1, 0, 1, 1], [1, 1, 1]]},
            "policy_versions", [[4, 4, 5, 5], [5, 5, 5]],
        ),
        # Turns are the runs of tokens between the answers of tools, unless the file names them.
        ({"loss_mask": [[1, 0, 0, 1, 1], [0, 1, 1]]}, "turn_ids", [[0, 1, 1], [0, 0]]),
        (
            {"loss_mask": [[1, 0, 0, 1, 1], [1, 1, 1]], "turn_ids": [[0, 0, 0, 1, 2], [3, 3, 4]]},
            "turn_ids", [[0, 1, 2], [3, 3, 4]],
        ),
    ],
)  # fmt: skip
def test_numbers_per_token(columns: dict[str, list[Any]], field: str, expected: list[list[int]]) -> None:
    record = read(**columns)
    assert real(record.batch.tensors()[field], record) == expected
    assert record.notes == ()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"versions": [[4] * 5, [5] * 3]}, [4, 5]),
        ({"versions": [[4] * 5, [5] * 3], "loss_mask": [[1] * 5, [0] * 3]}, [4, 5]),  # also without a token that counts
        ({"weight_version": ["9", "10"]}, [9, 10]),  # SGLang's is a text, "default" unless the trainer sets it
    ],
)
def test_one_version_per_response(columns: dict[str, list[Any]], expected: list[int]) -> None:
    assert read(**columns).batch.tensors()["policy_versions"].tolist() == expected


def test_versions_that_are_other_texts_are_left_out_because_their_order_is_unknown() -> None:
    record = read(weight_version=["default", "v2"])
    assert "policy_versions" not in record.batch.tensors()
    assert any("texts such as 'default': which of two texts is the newer version" in note for note in record.notes)


def test_one_turn_is_no_turn() -> None:
    assert "turn_ids" not in read(loss_mask=[[0, 1, 1, 1, 0], [1, 1, 1]]).batch.tensors()


@pytest.mark.parametrize(
    ("name", "lists", "why"),
    [
        (
            "versions",
            [[4, 5, 4, 5, 6], [5, 5, 5]],
            "row 0 (from 0): policy_versions falls within the response, from 5 to 4; a response is only continued with "
            "newer weights",
        ),
        ("versions", [[4, 5, 5], [5, 5, 6]], "policy_versions has"),
        (
            "turn_ids",
            [[0, 0, 1, 1, 0], [0, 1, 1]],
            "row 0 (from 0): turn_ids falls within the response, from 1 to 0; a turn ends before the next",
        ),
        ("turn_ids", [[0, 0, 0, 0, 0], [-1, 0, 1]], "row 1 (from 0): turn_ids has -1; turns are numbered from 0"),
    ],
)
def test_versions_that_run_backwards_and_turns_that_overlap_are_left_out(name: str, lists: list[Any], why: str) -> None:
    field = "policy_versions" if name == "versions" else name
    record = read(**{name: lists})
    assert field not in record.batch.tensors()
    (note,) = record.notes
    assert note.startswith(f"{field} is left out: ")
    assert why in note
