"""Training data: mock documents, plain text or JSON lines, packed into samples of one length.

Documents are joined end to end with an end-of-document token and cut every `seq` tokens, as
pre-training does: every sample is full, so every step of every rank does the same work and no
attention mask is needed. A file is read only as far as the run needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ljtrain.worker_config import BadInput, WorkerConfig

BYTE_VALUES = 256
IGNORED_LABEL = -100
# BERT (Devlin et al. 2018, section 3.1): 15 % of the tokens are predicted, of those 80 % are
# masked, 10 % are random.
PREDICTED, MASKED, RANDOM = 0.15, 0.8, 0.1
READ_CHUNK = 1 << 20

Encode = Callable[[str], list[int] | np.ndarray]


class PackedDataset(Dataset[dict[str, torch.Tensor]]):
    """Samples [seq] cut from one token stream; labels are the inputs, which the model itself
    shifts by one.
    """

    def __init__(self, tokens: np.ndarray, seq: int) -> None:
        samples = len(tokens) // seq
        self._samples = torch.from_numpy(tokens[: samples * seq].astype(np.int32)).view(
            samples, seq
        )

    def __len__(self) -> int:
        return self._samples.shape[0]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        input_ids = self._samples[index].long()
        return {"input_ids": input_ids, "labels": input_ids}


class MaskedDataset(Dataset[dict[str, torch.Tensor]]):
    """BERT's masked tokens over packed samples; the mask of a sample depends on the seed and its
    index alone.
    """

    def __init__(self, packed: PackedDataset, vocabulary: int, mask_token: int, seed: int) -> None:
        self._packed = packed
        self._vocabulary = vocabulary
        self._mask_token = mask_token
        self._seed = seed

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self._packed[index]["input_ids"]
        generator = torch.Generator().manual_seed(self._seed * len(self._packed) + index)
        draw = torch.rand((2, len(labels)), generator=generator)
        predicted = draw[0] < PREDICTED
        predicted[index % len(labels)] = True  # a sample without a target has no loss
        random_ids = torch.randint(self._vocabulary, labels.shape, generator=generator)
        input_ids = torch.where(predicted & (draw[1] < MASKED), self._mask_token, labels)
        randomised = predicted & (draw[1] >= MASKED) & (draw[1] < MASKED + RANDOM)
        input_ids = torch.where(randomised, random_ids, input_ids)
        return {"input_ids": input_ids, "labels": labels.masked_fill(~predicted, IGNORED_LABEL)}


def mock_documents(vocabulary: int, seq: int, seed: int) -> Iterator[np.ndarray]:
    """Megatron's mock GPT documents: random lengths, counting tokens, an end of document (token
    0).
    """
    random = np.random.default_rng(seed)
    while True:
        length = int(random.integers(2, 2 * seq))
        counting = np.arange(length - 1) % (vocabulary - 1) + 1
        yield np.append(counting, 0)


def text_documents(path: str) -> Iterator[str]:
    """A text file in pieces; where a piece ends says nothing about the text, so no token marks
    it.
    """
    with _open(path) as file:
        while piece := file.read(READ_CHUNK):
            yield piece


def jsonl_documents(path: str) -> Iterator[str]:
    """The "text" of each line of a JSON-lines file."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line).get("text")
            except (ValueError, AttributeError) as error:
                raise BadInput(f"{path}, line {number}: not a JSON object ({error}).") from error
            if not isinstance(text, str):
                raise BadInput(f'{path}, line {number}: no "text" string; every line needs one.')
            yield text


def _open(path: str) -> Any:
    try:
        return open(path, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"cannot read the data file {path}: {error.strerror}.") from error


def _encode_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _tokenizer(directory: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"cannot load a tokenizer from {directory}: {reason}") from error


def pack(documents: Iterable[np.ndarray | list[int]], needed: int) -> np.ndarray:
    """Joins documents until there are `needed` tokens (fewer, if they end before)."""
    parts: list[np.ndarray] = []
    have = 0
    for document in documents:
        parts.append(np.asarray(document, dtype=np.int64)[: needed - have])
        have += len(parts[-1])
        if have >= needed:
            break
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _encoded(texts: Iterable[str], encode: Encode, end: list[int]) -> Iterator[np.ndarray]:
    for text in texts:
        yield np.concatenate(
            [np.asarray(encode(text), dtype=np.int64), np.asarray(end, dtype=np.int64)]
        )


@dataclass(frozen=True)
class _Coding:
    """How text becomes tokens, what ends a document, and which token hides one."""

    encode: Encode
    end: list[int]
    mask_token: int


def _coding(data: dict[str, Any], vocabulary: int) -> _Coding:
    last = vocabulary - 1
    if data.get("tokenizer"):
        tokenizer = _tokenizer(data["tokenizer"])
        end = tokenizer.eos_token_id
        mask = tokenizer.mask_token_id
        return _Coding(
            lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            [] if end is None else [end],
            last if mask is None else mask,
        )
    if vocabulary < BYTE_VALUES:
        raise BadInput(
            f"byte tokens need a vocabulary of at least {BYTE_VALUES}; the model has {vocabulary}: "
            "give a tokenizer or a larger vocabulary."
        )
    return _Coding(_encode_bytes, [0], last)


def _file_tokens(data: dict[str, Any], coding: _Coding, needed: int) -> np.ndarray:
    if data["kind"] == "text":
        return pack(_encoded(text_documents(data["file"]), coding.encode, []), needed)
    return pack(_encoded(jsonl_documents(data["file"]), coding.encode, coding.end), needed)


def build_dataset(
    config: WorkerConfig, vocabulary: int, ranks: int
) -> Dataset[dict[str, torch.Tensor]]:
    """The run's samples: whole optimizer steps of all ranks, at most as many as the run has."""
    per_step = ranks * config.micro_batch * config.gradient_accumulation_steps
    needed = per_step * config.steps * config.seq
    mask_token = vocabulary - 1
    if config.data["kind"] == "mock":
        tokens = pack(mock_documents(vocabulary, config.seq, config.seed), needed)
    else:
        coding = _coding(config.data, vocabulary)
        mask_token = coding.mask_token
        tokens = _file_tokens(config.data, coding, needed)
    if len(tokens) and int(tokens.max()) >= vocabulary:
        raise BadInput(
            f"the tokenizer gives token {int(tokens.max())}, but the model's vocabulary ends at "
            f"{vocabulary - 1}: use the model's own tokenizer."
        )
    samples = len(tokens) // config.seq // per_step * per_step
    if samples == 0:
        raise BadInput(
            f"{config.data.get('file')} has {len(tokens)} tokens; one step of {ranks} ranks x "
            f"{per_step // ranks} sequences x {config.seq} tokens needs {per_step * config.seq}: "
            "give a larger file or a shorter --seq."
        )
    packed = PackedDataset(tokens[: samples * config.seq], config.seq)
    if config.task == "masked-lm":
        return MaskedDataset(packed, vocabulary, mask_token, config.seed)
    return packed
