"""Chat files: templates, what counts, packing, and that no conversation sees another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import Packed
from regard.data import BytesConfig, ChatConfig, PreferenceConfig
from regard.data.chats.config import CHATML
from regard.data.chats.data import ChatPart
from regard.data.chats.messages import pieces
from regard.data.chats.packing import pack, rows_of_step
from regard.data.chats.template import ChatFormat
from regard.errors import UserError

FORM = ChatFormat(CHATML, stops=("<|im_end|>",))
TOKENIZER = BytesConfig().build([])
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "And three?"},
    {"role": "assistant", "content": "Seven."},
]


def write(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def conversation(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_answers_are_what_the_assistant_says_and_its_end() -> None:
    found = pieces(FORM, tuple(CHAT))
    assert [piece.text for piece in found if piece.answer] == ["Four.<|im_end|>", "Seven.<|im_end|>"]
    assert "".join(piece.text for piece in found) + "\n" == FORM.render(CHAT, answer=False)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(20, 40))
def test_packing_keeps_every_document_once_and_wastes_little(lengths: list[int], room: int) -> None:
    rows = pack(lengths, room)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    sums = [sum(lengths[number] for number in row) for row in rows]
    assert max(sums) <= room
    assert sum(total <= room / 2 for total in sums) <= 1  # else two rows would fit into one


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 12), world=st.integers(1, 3), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_an_epoch_has_every_row_once_for_any_number_of_processes(count: int, world: int, size: int, seed: int) -> None:
    steps = -(-2 * count // (world * size))
    parts = [
        rows_of_step(step, count, seed=seed, rank=rank, world=world, size=size)
        for step in range(steps)
        for rank in range(world)
    ]
    order = np.concatenate(parts)
    assert sorted(order[:count]) == sorted(order[count : 2 * count]) == list(range(count))
    whole = [rows_of_step(step, count, seed=seed, rank=0, world=1, size=world * size) for step in range(steps)]
    assert np.array_equal(order, np.concatenate(whole))


def test_targets_are_answers_and_rows_hold_whole_conversations(tmp_path: Path) -> None:
    records = [conversation("q" * n, "a" * (n + 1)) for n in range(1, 9)] + [{"messages": CHAT}]
    config = ChatConfig(path=write(tmp_path / "c.jsonl", *records), tokens=256, validation=0.3).with_chat(FORM)
    data = config.build(512, tokenizer=TOKENIZER)
    found, inputs = [], []
    rows = [data.batch(step, seed=1, size=1) for step in range(data.train.size)]
    for batch in [*rows, *data.validation_batches(2)]:
        assert isinstance(batch.slots, Packed)
        for row, targets in enumerate(batch.targets):
            segment = batch.slots.segment[row]
            for one in range(int(segment.max()) + 1):
                place = segment == one
                if (targets[place] >= 0).any():
                    found.append(bytes(t for t in targets[place].tolist() if t >= 0).decode())
                    inputs.append(bytes(batch.inputs[row][place].tolist()).decode())
    wanted = ["a" * (n + 1) + "<|im_end|>" for n in range(1, 9)] + ["Four.<|im_end|>Seven.<|im_end|>"]
    assert sorted(found) == sorted(wanted)
    assert all(text.startswith("<|im_start|>") for text in inputs)
    assert data.validation_count == sum(int((b.targets >= 0).sum()) for b in data.validation_batches(2)) > 0


def test_no_conversation_sees_another(tmp_path: Path) -> None:
    from regard.models import GPTConfig
    from regard.tasks import LanguageTask

    torch.manual_seed(0)
    model = GPTConfig(vocabulary=256, context=256, layers=2, heads=2, width=16, zero_init=False).build().double().eval()
    records = [conversation(f"What is {n}?", f"It is {n * n}.") for n in range(5)]
    config = ChatConfig(path=write(tmp_path / "c.jsonl", *records), tokens=250, validation=0.0).with_chat(FORM)
    together, alone = (
        config.build(room, tokenizer=TOKENIZER).train
        for room in (250, 90)  # in the second, one in each row
    )
    assert together.size < alone.size == 5
    totals = []
    for part in (together, alone):
        batch = part.batch(np.arange(part.size))
        term = LanguageTask().terms(model, batch)["next_token"]
        totals.append((float(term.total.detach()), int(term.count)))
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)


def test_other_forms_of_files(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.jsonl",
        {"prompt": "Hi", "completion": "Hello"},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        conversation("Hi", "Hello"),
    )
    part = ChatConfig(path=path, validation=0.0).with_chat(FORM).build(512, tokenizer=TOKENIZER).train
    assert isinstance(part, ChatPart)
    assert len({text.ids.tobytes() for text in part.texts}) == 1
    assert len(part.texts) == 3


def test_preferences_compare_the_last_answers_only(tmp_path: Path) -> None:
    record = {"prompt": CHAT[:-1], "chosen": "Seven.", "rejected": [{"role": "assistant", "content": "Nine."}]}
    path = write(tmp_path / "p.jsonl", record, {"prompt": "Hi", "chosen": "Hello", "rejected": "No"})
    data = PreferenceConfig(path=path, validation=0.0).with_chat(FORM).build(512, tokenizer=TOKENIZER)
    batch = data.train.batch(np.arange(3))  # the third does not exist
    texts = [bytes(t for t in row.tolist() if t >= 0).decode() for row in batch.targets]
    assert texts == ["Seven.<|im_end|>", "Nine.<|im_end|>", "Hello<|im_end|>", "No<|im_end|>", "", ""]
    assert batch.inputs.shape[1] % 8 == 0
    padding = data.train.batch(np.arange(2, 4))  # as another rank may get at the end of an evaluation
    assert (padding.targets < 0).all()
    assert len(padding.targets) == 4


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}]}, "no answer of an assistant"),
        ({"messages": "Hi"}, "no answer of an assistant"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "no answer of an assistant"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, record: Any, message: str) -> None:
    path = write(tmp_path / "c.jsonl", conversation("a", "b"), record)
    with pytest.raises(UserError, match=f"line 2 .*{message}"):
        ChatConfig(path=path).with_chat(None).build(512, tokenizer=TOKENIZER)


def test_errors_name_the_fix(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", conversation("a" * 100, "b"))
    with pytest.raises(UserError, match=r"--data\.path"):
        ChatConfig().build(512, tokenizer=TOKENIZER)
    with pytest.raises(UserError, match="--init"):
        ChatConfig(path=path).build(512)
    with pytest.raises(UserError, match=r"raise --data\.tokens"):
        ChatConfig(path=path, tokens=32, validation=0.0).build(512, tokenizer=TOKENIZER)
    same = write(tmp_path / "p.jsonl", {"prompt": "a", "chosen": "b", "rejected": "b"})
    with pytest.raises(UserError, match="prefers an answer to itself"):
        PreferenceConfig(path=same).build(512, tokenizer=TOKENIZER)
