"""Our character tokenizer, and those of other models: byte-level, with a chat template, beside a Qwen2 config."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import (
    END_OF_TEXT,
    END_OF_TEXT_ID,
    END_OF_TURN,
    END_OF_TURN_ID,
    TEMPLATE,
    TURN,
    TURN_ID,
    byte_level,
    save,
)
from tokenizers import Tokenizer

from rlcorr.errors import UsageError
from rlcorr.train.inputs.tokenizer import decode, encode, eos_ids, load_tokenizer


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = byte_level(eos_token=END_OF_TURN, pad_token=END_OF_TEXT, chat_template=TEMPLATE)
    return save(tokenizer, tmp_path_factory.mktemp("chat"), eos_token_id=END_OF_TURN_ID)


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model: no template, no <bos>, no <pad>."""
    return save(byte_level(eos_token=END_OF_TEXT), tmp_path_factory.mktemp("plain"), eos_token_id=END_OF_TEXT_ID)


def file_ids(model: Path, text: str) -> list[int]:
    """The oracle: the ids that tokenizer.json itself gives."""
    return Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["12345+678=", "What is 12 plus 3?", "  é\n\t日本 ", "a , b ."])
def test_a_saved_tokenizer_does_what_its_file_says(plain_model: Path, text: str) -> None:
    tokenizer = load_tokenizer(plain_model)
    ids = encode(tokenizer, text)
    assert ids == file_ids(plain_model, text)  # no <bos>: it has none
    assert decode(tokenizer, [*ids, END_OF_TEXT_ID, 9, 9]) == text


def test_a_text_is_one_user_message(chat_model: Path) -> None:
    tokenizer = load_tokenizer(chat_model)
    ids = encode(tokenizer, "12+3=")
    assert ids == file_ids(chat_model, "<|im_start|>user\n12+3=<|im_end|>\n<|im_start|>assistant\n")
    assert ids[0] == TURN_ID
    assert ids.count(END_OF_TURN_ID) == 1


def test_an_instruction_stands_before_a_text_for_a_chat_model_alone(chat_model: Path, plain_model: Path) -> None:
    chat, plain = load_tokenizer(chat_model), load_tokenizer(plain_model)
    whole = "<|im_start|>user\nAdd.\n12+3=<|im_end|>\n<|im_start|>assistant\n"
    assert encode(chat, "12+3=", "Add.") == file_ids(chat_model, whole)
    assert encode(plain, "12+3=", "Add.") == file_ids(plain_model, "12+3=")
    messages = [{"role": "user", "content": "12+3="}]
    assert encode(chat, messages, "Add.") == encode(chat, messages)


def test_what_a_template_refuses_is_one_line(chat_model: Path) -> None:
    with pytest.raises(UsageError, match=r"chat template of the tokenizer at .* refuses .*robots may not speak"):
        encode(load_tokenizer(chat_model), [{"role": "robot", "content": "hello"}])


def test_a_text_that_cannot_be_written_is_one_line(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match=r"the tokenizer at .* cannot encode 'What is 1\+1\?'"):
        encode(load_tokenizer(tiny_model), "What is 1+1?")


def test_a_response_ends_at_the_first_stop(chat_model: Path) -> None:
    tokenizer = load_tokenizer(chat_model)
    answer, stops = file_ids(chat_model, "15"), [END_OF_TEXT_ID, END_OF_TURN_ID]
    assert decode(tokenizer, [*answer, END_OF_TEXT_ID, 9, END_OF_TURN_ID], stops) == "15"
    assert decode(tokenizer, [*answer, END_OF_TURN_ID, END_OF_TEXT_ID], stops) == "15"
    assert decode(tokenizer, [*answer, END_OF_TEXT_ID, END_OF_TURN_ID]) == "15" + END_OF_TEXT  # the tokenizer's own
    assert decode(tokenizer, answer, stops) == "15"
    assert decode(tokenizer, [END_OF_TURN_ID], stops) == ""
    assert decode(tokenizer, [TURN_ID, *answer], stops) == TURN + "15"  # other special tokens are not hidden


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [END_OF_TURN_ID, END_OF_TEXT_ID]}, END_OF_TURN_ID, [END_OF_TEXT_ID, END_OF_TURN_ID]),
        ({"eos_token_id": 7}, [8, 9], [END_OF_TURN_ID, 7, 8, 9]),
        ({}, None, [END_OF_TURN_ID]),
        (None, END_OF_TEXT_ID, [END_OF_TEXT_ID, END_OF_TURN_ID]),
        ({"eos_token_id": None}, END_OF_TURN_ID, [END_OF_TURN_ID]),
    ],
)
def test_every_named_end_stops_a_response(
    chat_model: Path, tmp_path: Path, generation: dict[str, Any] | None, config: Any, expected: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_ids(tmp_path, load_tokenizer(chat_model)) == expected


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer at .*: it must hold tokenizer\.json"):
        load_tokenizer(tmp_path)
