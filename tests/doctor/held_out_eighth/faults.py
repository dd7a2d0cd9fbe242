"""Faults of real training code, each with the answer that is expected, written before any diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import held_out_made as made
import patches
from held_out_cases import ADAMW, DIGITS, PAIRS, Case
from held_out_cases import REVIEWS as ALL_REVIEWS
from held_out_cases import TEXT as LONGER


def _constant(*arguments: str) -> Any:
    return lambda folder: list(arguments)


def from_base(name: str, *arguments: str) -> Any:
    """The arguments with the folder of the run that the case starts from in the place of BASE."""
    return lambda folder: [one.replace("BASE", str(folder.parent / f"{name}-base")) for one in arguments]


def _pretrained(folder: Path) -> list[str]:
    return [
        *("shakespeare-small", f"--init={folder.parent / 'pretrained_weights_skipped-base'}"),
        *("--train.adapt=lora", *ADAMW, "--data.tokenizer=characters"),
        *(f"--data.path={made.prose(folder / 'prose.txt')}", "--train.steps=100", "--train.evaluate_every=50"),
    ]


def _student(folder: Path) -> list[str]:
    import regard.train.distill  # noqa: F401 (it registers the task, which only `regard compress` does otherwise)

    return from_base("teacher_logits_of_other_rows", *STUDENT)(folder)


def _case_of_text(folder: Path, lower: bool) -> Sequence[str]:
    train = made.names(folder / f"train-{lower}.txt", seed=1, lower=lower)
    held = made.names(folder / "validation.txt", seed=2, count=1500)
    return [*TEXT, f"--data.path={train}", f"--data.validation_path={held}", "--data.tokenizer=bytes"]


def _copies(folder: Path, sound: bool) -> list[str]:
    given = [f"--data.path={made.opinions(folder / f'opinions-{sound}.csv', 0, 128 if sound else 160, 8)}"]
    if sound:
        given.append(f"--data.validation_path={made.opinions(folder / 'held.csv', 128, 160, 1)}")
    return [*REVIEWS, *given, "--data.batch=2048", "--train.steps=200"]


def _doubtful(folder: Path) -> list[str]:
    given = made.reviews(folder / "reviews.csv", share=0.2, doubt=0.25, length=(5, 10))
    return [*REVIEWS, f"--data.path={given}", "--task.balanced=true"]


def _pairs(*more: str) -> Any:
    return lambda folder: [*PAIRS, f"--data.path={made.pairs(folder / 'pairs.tsv')}", *more]


def waves(folder: Path) -> list[str]:
    return [
        *("etth1", f"--data.path={made.waves(folder / 'waves.csv')}", "--data.limit=none"),
        *("--data.points=96", "--data.horizon=24", "--train.optimizer.lr=3e-3", "--train.patience=none"),
        *("--train.steps=250", "--train.evaluate_every=50"),
    ]


def molecules(folder: Path) -> list[str]:
    return [
        *("solubility", f"--data.path={made.molecules(folder / 'molecules.csv')}", "--data.target=value"),
        *("--data.walks=0", "--model.layers=2", "--model.width=32", "--model.dropout=0.0"),
        *("--train.steps=200", "--train.evaluate_every=50"),
    ]


#: Less text, smaller batches and fewer steps than in the seventh list.
TEXT = (*LONGER, "--data.limit=150000", "--train.steps=150")
REVIEWS = (*ALL_REVIEWS, "--data.tokens=none", "--model.context=48", "--data.batch=1024", "--train.steps=150")
MASKED = (
    *("shakespeare-encoder", "--model.layers=2", "--model.heads=2", "--model.width=64", "--model.context=64"),
    *("--data.limit=150000", "--data.batch=16", "--train.steps=150", "--train.evaluate_every=50"),
)
GRU = (
    *("shakespeare-gru", "--model.width=64", "--model.context=64", "--data.limit=150000", "--data.batch=12"),
    *("--train.steps=200", "--train.evaluate_every=50"),
)
S4D = (*TEXT, "--model.attention=s4d", "--model.position=none")
MOE = (*(*TEXT, "--model.feedforward=moe", "--model.feedforward.ratio=1.0", "--model.feedforward.activation=relu2"),)
STUDENT = (*TEXT, "--model.layers=1", "--model.width=48", "--task=distill", "--task.teacher=BASE", "--task.share=0.9")

FAULTS = [
    Case(
        "losses_summed_over_micro_batches",
        _constant(*TEXT, "--data.batch=3", "--train.accumulate=4"),
        patches.losses_summed_over_micro_batches,
        cause="the losses (and gradients) of the 4 accumulated micro-batches are added, not averaged: the training "
        "loss is 4 times as large as it is, and gradients are clipped at a quarter of the limit",
        place="gradient accumulation: the divisor of the loss",
        effect="logged training loss about 4 times the validation loss",
        source="transformers 4.46: the logged loss multiplied by gradient_accumulation_steps",
    ),
    Case(
        "vocabulary_in_another_order",
        _constant(*TEXT, "--train.steps=100"),
        patches.vocabulary_in_another_order,
        cause="after resuming, token ids stand for other characters than before (and than in tokenizer.json)",
        place="data: token ids / tokenizer, from step 100 (where the run was resumed)",
        effect="the loss jumps above that of guessing when the run is resumed; the embeddings are learned anew",
        source="`chars = list(set(text))` without sorted in character-model tutorials; another order in each process",
        resume=150,
    ),
    Case(
        "masked_tokens_left_visible",
        _constant(*MASKED),
        patches.masked_tokens_left_visible,
        cause="tokens to predict are not masked in the inputs: the model sees its targets and copies them",
        place="the masking of inputs (masked-language task)",
        effect="loss near zero in training and validation; nothing about language is learned",
        source="`inputs.masked_fill(mask, mask_id)` whose result is not assigned",
    ),
    Case(
        "heads_merged_without_transpose",
        lambda folder: [*TEXT, f"--data.path={made.prose(folder / 'prose.txt')}", "--train.steps=200"],
        patches.heads_merged_without_transpose,
        cause="outputs of heads are merged without exchanging the axes of heads and tokens: a token gets the outputs "
        "of other tokens, of later ones too (the future leaks)",
        place="attention: the merge of the heads before the output projection, in each block",
        effect="a worse loss than that of the sound run, which generation does not reach",
        source="`out.view(B, N, C)` or `reshape` for `out.transpose(1, 2).reshape(B, N, C)`",
    ),
    Case(
        "teacher_logits_of_other_rows",
        _student,
        patches.teacher_logits_of_other_rows,
        cause="the student is compared with the teacher's distribution for other rows of the batch",
        place="the distillation term (teacher's logits and student's inputs do not belong together)",
        effect="the teacher's term stays high, and the student learns the mean distribution",
        source="cached logits of a teacher used with a shuffled loader",
        before=_constant(*TEXT),
    ),
    Case(
        "pretrained_weights_skipped",
        _pretrained,
        patches.pretrained_weights_skipped,
        cause="the weights of the pretrained run (init) were not loaded: adapters are trained beside frozen random "
        "weights",
        place="initialization / loading of --init",
        effect="the run starts at the loss of guessing and ends far above that of the sound run",
        source="load_state_dict(strict=False) with names that begin with `module.`",
        before=_constant(*TEXT, "--train.steps=250"),
    ),
    Case(
        "training_text_in_lower_case",
        lambda folder: _case_of_text(folder, lower=True),
        sound=lambda folder: _case_of_text(folder, lower=False),
        cause="the training text is in lower case and the validation text is not: tokens of the validation part never "
        "occur in training",
        place="data.path and data.validation_path (preparation of the texts)",
        effect="validation loss far above the training loss",
        source="a cleaning script that was run on one of two files",
    ),
    Case(
        "balance_loss_negated",
        _constant(*MOE),
        patches.balance_loss_negated,
        cause="the balance loss has the wrong sign: the router sends all tokens to the same experts, others are unused",
        place="the router / the balance loss of the mixtures of experts",
        effect="few of the 8 experts get nearly all tokens",
        source="a reward instead of a penalty in hand-written routers",
    ),
    Case(
        "early_stopping_keeps_the_worst",
        _constant(*DIGITS, "--train.evaluate_every=20", "--train.patience=3"),
        patches.early_stopping_keeps_the_worst,
        cause="early stopping takes a lower accuracy for the better one: it stops a run that improves, and keeps the "
        "weights of its worst evaluation",
        place="early stopping: the comparison of evaluations",
        effect="the run ends at step 80 of 200 with the weights of step 20",
        source="EarlyStopping(monitor='val_acc', mode='min')",
    ),
    Case(
        "mixup_weights_swapped",
        _constant(*DIGITS, "--data.mixup=1.0"),
        patches.mixup_weights_swapped,
        cause="the weights of the two labels of mixed images are exchanged",
        place="augmentation: labels of mixup",
        effect="the model learns the class that is less visible; validation loss above that of guessing",
        source="lam and 1 - lam exchanged between images and targets",
    ),
    Case(
        "copies_in_validation",
        lambda folder: _copies(folder, sound=False),
        sound=lambda folder: _copies(folder, sound=True),
        cause="validation examples are near-copies of training examples (each text is 8 times in the file with two "
        "words exchanged): the accuracy measures memory",
        place="data: the file / the division into training and validation",
        effect="high validation accuracy for labels that are random",
        source="augmentation or oversampling before the split",
    ),
    Case(
        "class_weights_by_frequency",
        _doubtful,
        patches.class_weights_by_frequency,
        cause="class weights are proportional to the frequency of a class, not to its inverse: the rare class counts "
        "less (0.4 to 1.6) instead of more",
        place="task: weights of the classes in the loss",
        effect="the rare class is never predicted",
        source="weight=counts / counts.sum() given to CrossEntropyLoss",
    ),
    Case(
        "images_scaled_twice",
        _constant(*DIGITS),
        patches.images_scaled_twice,
        cause="images are scaled twice: all inputs lie within 0.01 of -1 and hardly differ",
        place="data: the inputs (scaling of pixels)",
        effect="slow learning, or none",
        source="ToTensor() followed by a division by 255",
    ),
    Case(
        "adam_betas_swapped",
        _pairs(*ADAMW, "--train.optimizer.betas=0.999,0.9", "--train.steps=200"),
        sound=_pairs(*ADAMW, "--train.optimizer.betas=0.9,0.999", "--train.steps=200"),
        cause="the two betas of Adam are exchanged: the mean of gradients is over all steps of the run, that of their "
        "squares over 10",
        place="train.optimizer.betas",
        effect="slower and less stable learning",
        source="betas=(0.999, 0.9)",
    ),
    Case(
        "positions_by_row",
        _pairs("--model.position=sinusoidal"),
        patches.positions_by_row,
        cause="the position encoding runs over the rows of the batch, not over tokens: all tokens of a row have one "
        "position, and an output depends on the row's place in the batch",
        place="position encoding of encoder and decoder",
        effect="words are translated in no order; the loss stays high",
        source="PyTorch's PositionalEncoding for [N, B, C], used with batch_first=True",
    ),
    Case(
        "source_mask_inverted",
        _pairs(),
        patches.source_mask_inverted,
        cause="the mask of the source in cross-attention is inverted: the decoder sees padding, not the source",
        place="cross-attention: mask of the source / padding",
        effect="the translation does not depend on the words of the source",
        source="key_padding_mask is True at padding, attn_mask of other functions is True at tokens",
    ),
    Case(
        "forecasts_reshaped",
        waves,
        patches.forecasts_reshaped,
        cause="forecasts of 4 series are read in the wrong order (a view instead of a transpose): numbers of one "
        "series are compared with those of another",
        place="the model's output: the shape of forecasts",
        effect="forecasts stay worse than the mean",
        source="view or reshape for permute",
    ),
    Case(
        "squared_error_broadcast",
        molecules,
        patches.squared_error_broadcast,
        cause="predictions [B] and targets [B, 1] are broadcast to [B, B] in the loss: every prediction is compared "
        "with all targets",
        place="the regression loss",
        effect="the model predicts the mean; R² stays at 0",
        source="MSELoss: 'Using a target size that is different to the input size' ignored",
    ),
    Case(
        "time_and_batch_swapped",
        _constant(*GRU),
        patches.time_and_batch_swapped,
        cause="the recurrent cells run over the rows of the batch, not over time: no token sees earlier ones, and rows "
        "depend on other rows",
        place="the recurrent layers (axes of their inputs)",
        effect="the loss of a model of pairs of characters",
        source="nn.GRU without batch_first=True",
    ),
    Case(
        "circular_convolution",
        _constant(*S4D),
        patches.circular_convolution,
        cause="the convolution is circular: the end of a window reaches its beginning, so that tokens see the future",
        place="the state-space layers (convolution by Fourier transform without padding)",
        effect="losses that no generation reaches, or worse ones",
        source="fft of length N for a long convolution of length N",
    ),
]
