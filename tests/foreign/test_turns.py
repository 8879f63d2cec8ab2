"""Lists of lists in an object are turns of one response or many responses; other keys of the object decide."""

import io
from typing import Any

import torch
from pair_files import jsonl, parquet, read_pairs, real, refused

# Two trajectories of two and three turns, and two of two turns each.
UNEVEN = [[[-0.5, -0.25], [-0.125]], [[-1.0], [-0.75], [-2.0]]]
EVEN = [[[-0.5, -0.25], [-0.125]], [[-1.0], [-0.75]]]


def joined(objects: list[list[list[float]]]) -> list[list[float]]:
    return [[x for turn in turns for x in turn] for turns in objects]


def apart(objects: list[list[list[float]]]) -> list[list[float]]:
    return [turn for turns in objects for turn in turns]


def both(lists: list[Any], **more: list[Any]) -> dict[str, list[Any]]:
    return {"rollout_logprobs": lists, "old_log_probs": lists, **more}


def files(columns: dict[str, list[Any]]) -> dict[str, bytes]:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    stream = io.BytesIO()
    torch.save([{name: as_tensors(x) for name, x in row.items()} for row in rows], stream)
    return {"x.jsonl": jsonl(rows), "x.pt": stream.getvalue()}


def as_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [as_tensors(x) for x in value] if isinstance(value[0], list) else torch.tensor(value)
    return value


def test_one_reward_makes_turns_of_the_lists() -> None:
    """Read turns, also if all lines have the same number of turns, and in a single line."""
    for case, objects in {
        "uneven": UNEVEN,
        "even": EVEN,
        "one": UNEVEN[:1],
        "one turn each": [[[-0.5]], [[-1.0]]],
    }.items():
        ids = [[[7 for _ in turn] for turn in turns] for turns in objects]
        table = both(
            objects,
            reward=[1.0, 0.0][: len(objects)],
            response_ids=ids,
            loss_mask=[[[1] * len(t) for t in o] for o in objects],
        )
        for file, content in files(table).items():
            record = read_pairs(file, content)
            assert real(record.batch.rollout_log_probs, record) == joined(objects), (case, file)
            assert real(record.batch.tensors()["old_log_probs"], record) == joined(objects), (case, file)
            assert record.batch.tensors()["rewards"].tolist() == [1.0, 0.0][: len(objects)], (case, file)
            assert record.batch.tensors()["response_ids"].sum() == 7 * sum(map(len, joined(objects))), (case, file)


def test_a_list_of_rewards_makes_responses_of_the_lists() -> None:
    for case, objects in {"uneven": UNEVEN, "even": EVEN, "one": UNEVEN[:1]}.items():
        for more in (
            {"rewards": [[float(i) for i in range(len(o))] for o in objects]},
            {"lengths": [[len(t) for t in o] for o in objects]},
        ):
            for file, content in files(both(objects, **more)).items():
                record = read_pairs(file, content)
                assert real(record.batch.rollout_log_probs, record) == apart(objects), (case, file)
                if "rewards" in more:
                    assert record.batch.tensors()["rewards"].tolist() == [r for row in more["rewards"] for r in row], (
                        case,
                        file,
                    )


def test_a_plain_row_next_to_turns_has_one_turn() -> None:
    """A trajectory without a tool call is often written as a plain list."""
    table = both([[[-0.5, -0.25], [-0.125]], [-1.0, -0.75]], reward=[1.0, 0.0])
    lines = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    for content in (jsonl(lines), jsonl(lines[::-1])):
        record = read_pairs("x.jsonl", content)
        turns = record.batch.turn_ids
        assert turns is not None
        assert sorted(real(turns, record)) == [[0, 0], [0, 0, 1]]
        assert record.notes == ()


def test_responses_of_one_token_with_an_advantage_each() -> None:
    """Read two lists of one token: two advantages could be per token or per response, so they decide nothing."""
    table = both([[[-0.5], [-1.0]]], rewards=[[1.0, 0.0]], advantages=[[0.5, -0.5]])
    for file, content in files(table).items():
        record = read_pairs(file, content)
        assert real(record.batch.tensors()["advantages"], record) == [[0.5], [-0.5]], file


def test_where_nothing_says_it_the_file_is_refused() -> None:
    for case, table in {
        "nothing": both(UNEVEN), "even": both(EVEN), "one line": both(UNEVEN[:1]),
        "null": both(UNEVEN, reward=[None, None]),
        "an id of the prompt": both(UNEVEN, group_id=[1, 2]),
    }.items():  # fmt: skip
        for file, content in files(table).items():
            said = refused(file, content)
            assert "which may be as many responses or the turns of one" in said, (case, file)
            assert "Add one reward (a number) for turns, or a list of rewards" in said, (case, file)
    contradiction = both(UNEVEN, reward=[1.0, 1.0], group_ids=[[1, 1], [2, 2, 2]])
    for file, content in files(contradiction).items():
        assert "2 lists of rollout_logprobs, which may be as many responses or the turns of one" in refused(
            file, content
        )


def test_turns_that_do_not_fit_each_other() -> None:
    """Refuse turns of other lengths, although the number of tokens is the same: tokens would be paired wrongly."""
    other = [[[-0.5], [-0.25, -0.125]], UNEVEN[1]]
    said = refused(
        "x.jsonl", files({"rollout_logprobs": UNEVEN, "old_log_probs": other, "reward": [1.0, 0.0]})["x.jsonl"]
    )
    assert "the turns of rollout_logprobs have [2, 1] tokens, those of old_log_probs [1, 2]" in said
    table = both(UNEVEN, reward=[1.0, 0.0], input_ids=[[[1, 1, 1], [1, 1]], [[1], [1], [1]]])
    record = read_pairs("x.jsonl", files(table)["x.jsonl"])
    assert record.notes[0].startswith("token_ids is left out: ")


def test_lists_of_lists_in_parquet_are_refused() -> None:
    said = refused("x.parquet", parquet(**both(UNEVEN, reward=[1.0, 0.0])))
    assert "rollout_logprobs is a column of list<" in said
    assert "JSON Lines may hold lists of lists and objects, too" in said
