"""Twenty faults of real training code, each with the answer that is expected, written before any diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import held_out_made as made
import patches
from held_out_cases import ADAMW, DIGITS, PAIRS, REVIEWS, TEXT, Case


def _pairs(folder: Path, shift: int = 0) -> list[str]:
    return [*PAIRS, f"--data.path={made.pairs(folder / 'pairs.tsv', shift=shift)}"]


def _reviews(folder: Path, *more: str) -> list[str]:
    return [*REVIEWS, f"--data.path={made.reviews(folder / 'reviews.csv')}", *more]


def _constant(*arguments: str) -> Any:
    return lambda folder: list(arguments)


FAULTS = [
    Case(
        "windows_from_whole_text",
        _constant(*TEXT, "--data.limit=60000", "--data.validation=0.3", "--train.steps=400"),
        patches.windows_from_whole_text,
        cause="training batches contain the validation text (leak)",
        place="data: the training windows / the split",
        effect="validation loss is lower than that of the sound run",
        source="a sampler over len(tokens) instead of len(train), common in notebooks after nanoGPT's get_batch",
    ),
    Case(
        "token_ids_in_one_byte",
        _constant(*TEXT, "--data.tokenizer=words", "--data.tokenizer.vocabulary=2000", "--train.steps=150"),
        patches.token_ids_in_one_byte,
        cause="token ids are cut to 8 bits (modulo 256): ids from 256 on never occur, batches are not the text",
        place="data: token ids / vocabulary / tokenizer",
        effect="most of the vocabulary is never a target; the loss is that of another text",
        source="nanoGPT's np.uint16 with a larger vocabulary, one size smaller",
    ),
    Case(
        "validation_not_normalized",
        _constant(*DIGITS),
        patches.validation_not_normalized,
        cause="validation images are scaled otherwise than training images (0 to 1 instead of -1 to 1)",
        place="data: the validation inputs",
        effect="validation loss far above that of the sound run",
        source="ToTensor without Normalize in the validation transform",
    ),
    Case(
        "sorted_by_class",
        _constant(*DIGITS),
        patches.sorted_by_class,
        cause="training examples are not shuffled: they come sorted by class, a batch has one class or two",
        place="data: order of the training examples",
        effect="the loss swings with the class of the batch; validation loss is far higher",
        source="DataLoader without shuffle on a folder of classes",
    ),
    Case(
        "misaligned_pairs",
        lambda folder: _pairs(folder, shift=1),
        sound=_pairs,
        cause="sources and targets do not belong together; the target does not depend on the source",
        place="data: the pairs",
        effect="the decoder ignores the source; loss stays that of a language model of the target side",
        source="parallel corpora with a lost line",
    ),
    Case(
        "truncated_texts",
        lambda folder: _reviews(folder, "--data.tokens=16", "--data.keep=start"),
        sound=lambda folder: _reviews(folder, "--data.tokens=none"),
        cause="texts are cut to 16 tokens, most of each is lost",
        place="--data.tokens (or --data.keep)",
        effect="the verdict at the end is never read; accuracy stays at chance",
        source="max_length left at a small default with truncation=True",
    ),
    Case(
        "end_token_ignored",
        _pairs,
        patches.end_token_ignored,
        cause="the end token is never a target",
        place="data: targets (end token masked as padding)",
        effect="the model never learns to end a translation",
        source="pad_token = eos_token and labels[labels == pad] = -100: transformers, NeMo Automodel #1336",
    ),
    Case(
        "class_zero_ignored",
        _constant(*DIGITS),
        patches.class_zero_ignored,
        cause="targets of class 0 do not count in the loss (ignore_index = 0)",
        place="task: the loss / class 0",
        effect="no gradient from images of a zero: recall of that class is 0",
        source="CrossEntropyLoss(ignore_index=0) copied from a padded text task",
    ),
    Case(
        "softmax_over_batch",
        _constant(*DIGITS),
        patches.softmax_over_batch,
        cause="the softmax of the loss is over the batch instead of the classes; rows of a batch influence each other",
        place="task: the loss (dimension of the softmax)",
        effect="the first loss is log(batch) instead of log(classes)",
        source="softmax(dim=0), or an implicit dim",
    ),
    Case(
        "head_replaced_after_optimizer",
        _constant(*TEXT, *ADAMW, "--model.tied=false"),
        patches.head_replaced_after_optimizer,
        cause="the head's weight is not among the optimizer's parameters, so it is never updated",
        place="unembed.weight",
        effect="the output layer keeps its random weights",
        source="resize_token_embeddings or a new head after the optimizer was built; pytorch #14467",
    ),
    Case(
        "eps_too_large",
        _constant(*TEXT, "--train.optimizer=adamw", "--train.optimizer.lr=3e-3", "--train.optimizer.eps=1.0"),
        sound=_constant(*TEXT, *ADAMW),
        cause="Adam's epsilon is far above the root of the second moment, so that updates are tiny",
        place="--train.optimizer.eps",
        effect="hardly any learning",
        source="TensorFlow's advice of epsilon = 1.0 for Inception",
    ),
    Case(
        "schedule_steps_per_micro_batch",
        _constant(*TEXT, "--train.accumulate=4", "--data.batch=3"),
        patches.schedule_steps_per_micro_batch,
        cause="the schedule runs 4 times too fast: the learning rate is 0 after a quarter of the run",
        place="--train.schedule (with --train.accumulate)",
        effect="no learning in the last three quarters",
        source="scheduler.step() inside the accumulation loop; accelerate's step_with_optimizer",
    ),
    Case(
        "keys_detached",
        _constant(*TEXT),
        patches.keys_detached,
        cause="keys are detached: the key part of qkv gets no gradient",
        place="blocks.*.attention.qkv (its keys)",
        effect="the key matrices keep their random weights",
        source="code of the KV cache (cache.append(k.detach())) used in training",
    ),
    Case(
        "norm_over_time",
        _constant(*TEXT),
        patches.norm_over_time,
        cause="a norm takes its mean over the tokens too, so that a token depends on later ones",
        place="blocks.1.norm_attention",
        effect="logits depend on the future; losses differ, and generation is another function than training",
        source="nn.LayerNorm([N, C]) or GroupNorm on [B, C, N] in a causal model",
    ),
    Case(
        "rotary_on_queries_only",
        _constant(*TEXT),
        patches.rotary_on_queries_only,
        cause="keys are not rotated: scores do not depend on relative positions",
        place="attention: rotation of the keys / position",
        effect="a higher loss; a key has no position",
        source="a tuple (q, k) = rotate(q), k in ports of Llama",
    ),
    Case(
        "recurrent_matrices_of_deviation_1",
        _constant(
            *("shakespeare-rnn", "--model.width=96", "--model.context=64", "--data.limit=400000"),
            *("--train.steps=200", "--train.evaluate_every=50"),
        ),
        patches.recurrent_matrices_of_deviation_1,
        cause="recurrent weights are initialized far too large, so that the tanh cells saturate",
        place="blocks.*.recurrent (initialization)",
        effect="states are +-1; gradients explode or vanish, and the loss is higher",
        source="an init function for all Linear with std 1.0, or a bare torch.randn",
    ),
    Case(
        "average_of_weights_lags",
        _constant(*TEXT),
        patches.average_of_weights_lags,
        cause="evaluation uses other weights than those trained: an average (EMA) with a decay too slow for the run",
        place="evaluation / the averaged weights",
        effect="validation loss stays near that of the start, while the training loss falls",
        source="EMA decay 0.9999 in short fine-tunings",
    ),
    Case(
        "weights_in_bfloat16",
        _constant(*TEXT, "--train.optimizer=adamw", "--train.optimizer.lr=1e-4", "--train.optimizer.weight_decay=0"),
        patches.weights_in_bfloat16,
        cause="weights are stored in bfloat16, whose rounding loses most updates of this size",
        place="all weights / precision",
        effect="a higher loss than with weights in float32",
        source="model.to(torch.bfloat16) before the optimizer, without master weights",
    ),
    Case(
        "data_restarts_on_resume",
        _constant(*TEXT, "--train.steps=150", "--train.save_every=150"),
        patches.data_restarts_on_resume,
        cause="after resuming, the data begins again: batches of the first session are repeated",
        place="resume: position in the data",
        effect="the second session sees the batches of the first one again",
        source="dataloader state is not saved: lightning, torchtitan before stateful dataloaders",
        resume=300,
    ),
    Case(
        "adapters_both_zero",
        lambda folder: [
            *("shakespeare-small", f"--init={folder.parent / 'adapters_both_zero-base'}", "--train.adapt=lora"),
            *(*ADAMW, "--data.limit=100000", "--train.steps=150", "--train.evaluate_every=50"),
        ],
        patches.adapters_both_zero,
        cause="both factors of the adapters start at zero, so both gradients are zero for ever",
        place="lora_a and lora_b (initialization)",
        effect="nothing is learned",
        source="zeros_ on both factors; also zero-init of two consecutive layers",
        before=_constant(*TEXT, "--train.steps=100"),
    ),
]
