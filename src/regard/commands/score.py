"""`regard score`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from regard.commands.common import CheckpointOptions
from regard.config import argument, option
from regard.errors import UserError
from regard.runs.disk import JsonObject
from regard.runs.waiting import notice, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.data.records import Record
    from regard.generate.scoring import ScoredText, Scorer

Measure = Literal["sum", "token", "byte"]
CONTENT_FREE = ("N/A", "", "[MASK]")  # Zhao et al. 2021, sec. 5
ANSWER = "{answer}"


@dataclass(frozen=True)
class ScoreOptions(CheckpointOptions):
    """Options of `regard score`."""

    file: Path | None = argument(None, "examples: a .jsonl file, or a .csv or .tsv file with a header", metavar="FILE")
    template: str = option(
        "{prompt} {answer}", "the text of an example: {names} are its fields, {answer} comes last; \\n is a new line"
    )
    choices: str | None = option(None, "the possible answers, if an example does not list them: 'good|bad'")
    shots: int = option(0, "examples with answers before each question (few-shot)")
    examples: Path | None = option(None, "take the shots from this file; default: the first of FILE", metavar="FILE")
    by: Measure = option("sum", "compare log-probabilities as they are, per token or per byte")
    calibrate: bool = option(False, "contextual calibration: relative to the answers to questions without content")
    limit: int | None = option(None, "score the first examples only, this many")


class ScoredQuestion(NamedTuple):
    """A question, the possible answers, and which of them is right."""

    fields: dict[str, str]
    choices: tuple[str, ...]
    right: int


def score(options: ScoreOptions) -> int:
    """Ask a language model without training it: classification, translation or questions from a file of examples.

    Each example has fields, an `answer` and `choices` (a list; in a table 'good|bad'), or --choices gives them. The
    template makes a text of them, and the answer with the largest log-probability is the model's. Without choices the
    log-probability of the answer is measured, and whether greedy decoding would write it.
    """
    options.check_at_least_one("limit")
    if options.file is None:
        raise UserError("give a file of examples: regard score RUN FILE")
    template = options.template.replace("\\n", "\n")
    if not template.endswith(ANSWER) or template.count(ANSWER) != 1:
        raise UserError(f"--template {options.template!r} does not end with {ANSWER}, which stands for each choice")
    shots, examples = read_examples(options)
    run = options.open()
    from regard.generate.scoring import Scorer
    from regard.models.base import LanguageModel

    model, loaded = options.load(run, LanguageModel, "; log-probabilities are of language models")
    before = "".join(filled(template, shot.fields, shot.choices[shot.right]) + "\n\n" for shot in shots)
    scorer = Scorer(model, loaded.tokenizer)
    scores = ask(scorer, [before + filled(template, one.fields) for one in examples], [e.choices for e in examples])
    if left := sum(scored[0].truncated > 0 for scored in scores):
        notice(f"{left:,} of {len(scores):,} prompts are longer than the model reads: their beginning was left out")
    summary: JsonObject = {"run": str(run.path), "step": loaded.step, "file": str(options.file)}
    summary |= {"examples": len(examples), "shots": len(shots), "by": options.by}
    summary |= measures(examples, scores)
    if options.calibrate:
        empty = [before + filled(template, dict.fromkeys(examples[0].fields, text)) for text in CONTENT_FREE]
        summary |= calibration(scorer, empty, examples, scores, options.by)
    options.show({**summary, "predictions": predictions(examples, scores)}, described(summary))
    return 0


def read_examples(options: ScoreOptions) -> tuple[list[ScoredQuestion], list[ScoredQuestion]]:
    """The examples before each question, and those that are asked."""
    from regard.data.records import read_records

    assert options.file is not None
    shared = None if options.choices is None else tuple(options.choices.split("|"))
    found = [example(options.file, number, one, shared) for number, one in read_records(options.file)]
    more = [] if options.examples is None else read_records(options.examples)
    pool = [example(options.examples or options.file, number, one, shared) for number, one in more] or found
    if options.shots < 0 or options.shots > len(pool) - (pool is found):
        raise UserError(f"--shots {options.shots}: there are {len(pool)} examples; give a smaller number of at least 0")
    asked = found[options.shots :] if pool is found else found
    if options.calibrate and any(len(one.choices) < 2 for one in asked):
        raise UserError("calibration compares choices; give --choices, or `choices` in each example")
    return pool[: options.shots], asked[: options.limit]


def example(path: Path, number: int, record: Record, shared: tuple[str, ...] | None) -> ScoredQuestion:
    """The example of a record."""
    where = f"record {number} of {path}"
    given, answer = record.get("choices"), record.get("answer")
    listed = tuple(given.split("|")) if isinstance(given, str) else tuple(given) if isinstance(given, list) else shared
    if listed is not None and not all(isinstance(one, str) and one for one in listed):
        raise UserError(f"{where}: `choices` must be texts; write them as a list, or as 'good|bad' in a table")
    if isinstance(answer, int) and listed is not None and 0 <= answer < len(listed):
        answer = listed[answer]
    if not isinstance(answer, str) or not answer:
        raise UserError(f"{where} has no `answer`, a text or the number of a choice from 0")
    if listed is not None and answer not in listed:
        raise UserError(f"{where}: the answer {answer!r} is none of the choices {', '.join(map(repr, listed))}")
    fields = {name: str(value) for name, value in record.items() if name not in ("choices", "answer")}
    choices = listed or (answer,)
    return ScoredQuestion(fields, choices, choices.index(answer))


def filled(template: str, fields: dict[str, str], answer: str = "") -> str:
    """The template with the fields of an example and, for a shot, its answer."""

    def value(found: re.Match[str]) -> str:
        if found[0] == ANSWER:
            return answer
        if found[1] not in fields:
            there = ", ".join(f"{{{name}}}" for name in fields)
            raise UserError(f"the template has {found[0]}, but an example has {there}; change --template")
        return fields[found[1]]

    return re.sub(r"\{(\w+)\}", value, template)


def ask(scorer: Scorer, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[list[ScoredText]]:
    """The scores of the choices after each prompt."""
    from regard.generate.scoring import ScoreRequest

    requests = [ScoreRequest(*one) for one in zip(prompts, choices, strict=True)]
    return [scores for _, scores in sorted(progress(scorer.score(requests), len(requests), "examples"))]


def measures(examples: Sequence[ScoredQuestion], scores: Sequence[Sequence[ScoredText]]) -> JsonObject:
    """Accuracy by each measure, of always giving the most frequent answer, and the log-probability of the right one."""
    rights = [scored[one.right] for one, scored in zip(examples, scores, strict=True)]
    result: JsonObject = {}
    if any(len(one.choices) > 1 for one in examples):
        chosen = {by: [best(scored, by) for scored in scores] for by in get_args(Measure)}
        result["accuracy"] = {by: _share(examples, found) for by, found in chosen.items()}
        counts = Counter(one.choices[one.right] for one in examples)
        result["most_frequent"] = max(counts.values()) / len(examples)
    result["greedy"] = sum(one.greedy for one in rights) / len(rights)
    result["log_probability_per_token"] = sum(one.total for one in rights) / sum(one.tokens for one in rights)
    result["log_probability_per_byte"] = sum(one.total for one in rights) / sum(one.size for one in rights)
    return result


def best(scored: Sequence[ScoredText], by: Measure) -> int:
    """The choice with the largest log-probability; of equal ones the first."""
    return max(range(len(scored)), key=lambda choice: scored[choice].by(by))


def _share(examples: Sequence[ScoredQuestion], chosen: Sequence[int]) -> float:
    return sum(one.right == found for one, found in zip(examples, chosen, strict=True)) / len(examples)


def calibration(
    scorer: Scorer,
    empty: Sequence[str],
    examples: Sequence[ScoredQuestion],
    scores: Sequence[Sequence[ScoredText]],
    by: Measure,
) -> JsonObject:
    """The accuracy after contextual calibration, by the measure ``by``."""
    import torch

    from regard.generate.scoring import calibrated

    sets = list(dict.fromkeys(one.choices for one in examples))
    asked = [(prompt, choices) for choices in sets for prompt in empty]
    answers = ask(scorer, *zip(*asked, strict=True))
    values = [torch.tensor([one.by(by) for one in scored], dtype=torch.float64) for scored in answers]
    free = {choices: torch.stack(values[n * len(empty) : (n + 1) * len(empty)]) for n, choices in enumerate(sets)}
    given = [torch.tensor([one.by(by) for one in scored], dtype=torch.float64) for scored in scores]
    chosen = [int(calibrated(own, free[one.choices]).argmax()) for one, own in zip(examples, given, strict=True)]
    return {"accuracy_calibrated": _share(examples, chosen)}


def predictions(examples: Sequence[ScoredQuestion], scores: Sequence[Sequence[ScoredText]]) -> list[JsonObject]:
    """The log-probability, number of tokens and bytes of every choice."""
    return [
        {
            "answer": one.choices[one.right],
            "choices": [{"text": c.text, "log_probability": c.total, "tokens": c.tokens, "bytes": c.size} for c in own],
        }
        for one, own in zip(examples, scores, strict=True)
    ]


def described(summary: JsonObject) -> str:
    """The result in words."""
    lines = [f"{summary['run']}, {summary['examples']:,} examples of {summary['file']}, {summary['shots']} shots"]
    if "accuracy" in summary:
        by = ", ".join(f"{value:.1%} by {name}" for name, value in summary["accuracy"].items())
        lines.append(f"accuracy {by}; always the most frequent answer: {summary['most_frequent']:.1%}")
    if "accuracy_calibrated" in summary:
        lines.append(f"accuracy {summary['accuracy_calibrated']:.1%} by {summary['by']}, calibrated")
    per = f"{summary['log_probability_per_token']:.4f} per token, {summary['log_probability_per_byte']:.4f} per byte"
    lines.append(f"log-probability of the right answer {per}; {summary['greedy']:.1%} of them by greedy decoding")
    return "\n".join(lines)
