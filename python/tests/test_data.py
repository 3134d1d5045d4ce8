"""The training data: packing, mock documents, masks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ljtrain import worker_config as configuration
from ljtrain import worker_data
from ljtrain.worker_config import BadInput
from ranks import worker_config

VOCABULARY = 512
RANKS = 2


def build(folder: Path, ranks: int = RANKS, vocabulary: int = VOCABULARY, **changes: Any) -> Any:
    path = folder / "WORKER.json"
    path.write_text(json.dumps(worker_config(folder, **changes)))
    return worker_data.build_dataset(configuration.load(str(path)), vocabulary, ranks)


def text_file(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "data.txt"
    path.write_text(text)
    return {"kind": "text", "file": str(path), "tokenizer": None}


def stream(dataset: Any) -> list[int]:
    return [int(token) for index in range(len(dataset)) for token in dataset[index]["input_ids"]]


def test_mock_documents_fill_the_run_and_repeat_with_the_seed(tmp_path: Path) -> None:
    dataset = build(tmp_path, steps=4, micro_batch=2)
    assert len(dataset) == 4 * 2 * RANKS
    assert stream(dataset) == stream(build(tmp_path, steps=4, micro_batch=2))
    assert stream(dataset) != stream(build(tmp_path, steps=4, micro_batch=2, seed=8))
    tokens = torch.tensor(stream(dataset))
    assert tokens.min() == 0
    assert tokens.max() < VOCABULARY
    lengths = (tokens == 0).nonzero().diff(dim=0)
    assert lengths.numel() > 3
    assert lengths.unique().numel() > 3  # documents of random lengths


def test_text_is_packed_without_loss(tmp_path: Path) -> None:
    text = "".join(chr(97 + index % 26) for index in range(5000)) + "é" * 10
    dataset = build(tmp_path, data=text_file(tmp_path, text), steps=100)
    per_step = RANKS * 2
    samples = len(text.encode()) // 64 // per_step * per_step
    assert len(dataset) == samples
    assert bytes(stream(dataset)) == text.encode()[: samples * 64]
    assert torch.equal(dataset[0]["labels"], dataset[0]["input_ids"])
    assert dataset[0]["input_ids"].dtype == torch.int64


def test_only_what_the_run_needs_is_read(tmp_path: Path) -> None:
    assert len(build(tmp_path, data=text_file(tmp_path, "x" * 1_000_000), steps=3)) == 3 * 2 * RANKS


def test_steps_are_whole_with_gradient_accumulation(tmp_path: Path) -> None:
    data = text_file(tmp_path, "x" * 64 * 29)
    dataset = build(
        tmp_path, data=data, steps=100, training_arguments={"gradient_accumulation_steps": 3}
    )
    assert len(dataset) == 2 * (RANKS * 2 * 3)


def test_jsonl_documents_end_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"text": "a" * 9}) for _ in range(100)) + "\n\n")
    dataset = build(tmp_path, data={"kind": "jsonl", "file": str(path)}, steps=1)
    assert stream(dataset)[:20] == [97] * 9 + [0] + [97] * 9 + [0]


def test_masked_language_modelling(tmp_path: Path) -> None:
    data = text_file(tmp_path, "abcdefgh" * 20_000)
    dataset = build(tmp_path, task="masked-lm", data=data, steps=100)
    rows = [dataset[index] for index in range(len(dataset))]
    inputs = torch.stack([row["input_ids"] for row in rows])
    labels = torch.stack([row["labels"] for row in rows])
    predicted = labels != worker_data.IGNORED_LABEL
    mask = VOCABULARY - 1
    assert predicted.any(dim=1).all()
    assert predicted.float().mean() == pytest.approx(
        0.16, abs=0.01
    )  # 15 % and the one that is always there
    assert (inputs == mask)[predicted].float().mean() == pytest.approx(0.8, abs=0.02)
    unchanged = (inputs == labels)[predicted].float().mean()
    assert unchanged == pytest.approx(0.1, abs=0.02)
    assert not (inputs == mask)[~predicted].any()
    assert torch.equal(
        dataset[3]["input_ids"], dataset[3]["input_ids"]
    )  # the same whenever it is fetched


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="has 10 tokens; one step of 2 ranks x 2 sequences x 64 tokens needs 256"
    ):
        build(tmp_path, data=text_file(tmp_path, "x" * 10))
    with pytest.raises(BadInput, match="vocabulary of at least 256; the model has 100"):
        build(tmp_path, vocabulary=100, data=text_file(tmp_path, "x" * 1000))
    with pytest.raises(BadInput, match=r"cannot read the data file .*: No such file"):
        build(tmp_path, data={"kind": "text", "file": str(tmp_path / "missing")})
    with pytest.raises(BadInput, match="cannot load a tokenizer from"):
        build(tmp_path, data=text_file(tmp_path, "x" * 1000) | {"tokenizer": str(tmp_path)})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"txt": "a"}', 'no "text" string'),
        ('{"text": 3}', 'no "text" string'),
        ("{", "not a JSON"),
        ("[1]", "not a"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(BadInput, match=f"line 2: {reason}"):
        build(tmp_path, data={"kind": "jsonl", "file": str(path)})


def test_a_local_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[UNK]": 0, "hello": 1, "world": 700}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    directory = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        directory
    )
    data = text_file(tmp_path, "hello there " * 1000) | {"tokenizer": str(directory)}
    assert set(stream(build(tmp_path, data=data))) == {0, 1}
    data = text_file(tmp_path, "hello world " * 1000) | {"tokenizer": str(directory)}
    with pytest.raises(BadInput, match="gives token 700, but the model's vocabulary ends at 511"):
        build(tmp_path, data=data)
