"""Words follow from figures: made-up runs of different kinds, and the sentences that must and must not be there."""

import math
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import dump, override
from regard.config.command_line import parse
from regard.look import Head
from regard.look.capture.layer_names import LayerName, layer_names
from regard.recipes import get
from regard.report.config_diff import AUTOMATIC, differences
from regard.report.facts import Facts, curves
from regard.report.figures import entropy_chart, loss_figure
from regard.report.inspection import Inspection, ModelSize, PositionLosses
from regard.report.page import losses, tiles
from regard.report.trend import trend
from regard.report.words import next_step, summary

STEPS = 4000
CONFIG = dump(override(get("shakespeare"), ["--train.steps", str(STEPS)]))


def facts(loss, validation=(), **given):
    """A run with these losses, evenly spread over its steps."""
    records = [
        {"step": (i + 1) * STEPS // len(loss), "loss": value, "lr": 0.01, "tokens": 1000 * i, "seconds": 1.0 * i}
        for i, value in enumerate(loss)
    ]
    records += [{"step": (i + 1) * STEPS // len(validation), "validation_loss": v} for i, v in enumerate(validation)]
    step = max((record["step"] for record in records), default=0)
    return Facts(**{"name": "made", "path": "runs/made", "config": CONFIG, "step": step, **curves(records), **given})


def falling(count=100, to=1.5):
    return [to + 3 * math.exp(-6 * i / count) for i in range(count)]


def flat(count=100):
    return [1.5 + 3 * math.exp(-60 * i / count) for i in range(count)]


def words(run):
    return " ".join(summary(run))


RUNS = {
    "falls": facts([4.0 - 0.02 * i for i in range(100)], [3.5, 3.0, 2.5, 2.1]),
    "flat": facts(flat(), [2.0, 1.6, 1.6, 1.599]),
    "overfits": facts([4.0 - 0.03 * i for i in range(100)], [2.4, 1.9, 2.1, 2.6]),
    "worse": facts([*falling(60), *[3.9] * 40], [2.0, 1.8, 3.9]),
    "short": facts([4.1, 4.0], [4.0]),
    "diverged": facts(falling(20), diverged="at step 21, data position 21, the loss became nan"),
    "unknown": facts([]),
}


@pytest.mark.parametrize("story", RUNS)
def test_each_story_is_recognised(story):
    assert trend(RUNS[story]) == story


@pytest.mark.parametrize(
    ("story", "said"),
    [
        ("falls", "still falling in the last quarter"),
        ("flat", "it has converged"),
        ("overfits", "The model overfits: since step 2,000"),
        ("worse", "the loss rose again"),
        ("short", "too short to show a trend"),
        ("diverged", "It diverged: at step 21"),
        ("unknown", "no step is recorded yet"),
    ],
)
def test_its_sentence_is_said_there_and_nowhere_else(story, said):
    assert [name for name, run in RUNS.items() if said in words(run)] == [story]


@pytest.mark.parametrize("story", [name for name in RUNS if name != "unknown"])
def test_what_to_try_is_a_command_that_works_and_changes_something(story):
    step = next_step(RUNS[story])
    line = shlex.split(step.command)
    if line[1] == "resume":
        assert line == ["regard", "resume", "runs/made", "--steps", str(STEPS * (2 if story == "falls" else 10))]
        return
    assert line[:3] == ["regard", "train", "shakespeare"]
    assert parse(line[3:]).positional == []
    assert override(get("shakespeare"), line[3:]) != get("shakespeare")


def test_advice_follows_the_story():
    tried = {story: next_step(run).command.partition("shakespeare ")[2] for story, run in RUNS.items()}
    assert tried["flat"] == "--model.width 256"
    assert tried["overfits"] == "--model.dropout 0.1"
    assert tried["diverged"] == tried["worse"] == "--train.optimizer.lr 0.0067"
    assert next_step(RUNS["unknown"]).command == "regard resume runs/made"


def test_longer_training_continues_the_run():
    """`regard train` would start over."""
    assert next_step(RUNS["falls"]).command == "regard resume runs/made --steps 8000"
    assert next_step(RUNS["short"]).command == "regard resume runs/made --steps 40000"


def test_two_records_are_no_convergence():
    """Sixty steps, a record every ten: two noisy losses in the last quarter, and a validation loss that falls."""
    loss = [4.17, 2.6, 2.3, 2.1, 2.05, 2.0, 2.01]
    assert trend(facts(loss, [2.04, 1.94])) == "falls"
    assert trend(facts(loss)) == trend(facts(loss, [1.94, 1.94])) == "short"
    assert trend(facts(loss, [1.95, 1.94, 1.94])) == "short"
    assert "converged" not in words(facts(loss, [2.04, 1.94])) + words(facts(loss))


def test_convergence_is_seen_through_the_noise_or_not_at_all():
    noisy = [loss + 0.5 * (-1) ** i for i, loss in enumerate(flat(40))]
    assert trend(facts(noisy)) == "short"
    assert trend(facts(flat(40))) == trend(facts(flat(40), [1.6, 1.599])) == "flat"
    assert trend(facts(flat(40), [1.8, 1.6])) == "falls"  # the validation loss does not agree
    assert trend(facts(noisy, [1.8, 1.6, 1.6, 1.599])) == "flat"
    assert next_step(facts(noisy)).command == "regard resume runs/made --steps 8000"


@given(
    records=st.integers(1, 400),
    noise=st.floats(0, 1),
    rate=st.floats(0.06, 0.3),
    validation=st.sampled_from([0, 2, 4, 8]),
)
def test_a_loss_that_falls_is_never_called_converged(records, noise, rate, validation):
    """In each quarter it falls by more than a twentieth, whatever the number of records and their noise."""

    def curve(count, sway=0.0):
        return [4 * (1 - rate) ** (4 * (i + 1) / count) + sway * (-1) ** i for i in range(count)]

    told = words(facts(curve(records, noise), curve(validation) if validation else ()))
    assert "converged" not in told


@given(loss=st.lists(st.floats(0.1, 10), min_size=1, max_size=19), validation=st.lists(st.floats(0.1, 10), max_size=3))
def test_few_records_are_never_called_converged(loss, validation):
    """Fewer than five in the last quarter, evaluations included."""
    enough = len(loss) - 3 * len(loss) // 4 + (len(validation) + 3) // 4 >= 5
    assert enough or trend(facts(loss, validation)) != "flat"


def test_a_suggestion_differs_from_the_setting():
    most = {**CONFIG, "model": {**CONFIG["model"], "dropout": 0.5}}
    assert next_step(replace(RUNS["overfits"], config=most)).command.endswith("--train.steps 2000")


def test_a_report_names_one_learning_rate():
    finding = {"change": "--train.optimizer.lr 0.002, or --train.clip 1.0"}
    assert next_step(replace(RUNS["worse"], findings=[finding])).command.endswith("--train.optimizer.lr 0.002")


def test_a_run_cut_short_is_resumed():
    run = facts(falling(), step=100)
    assert next_step(run).command == "regard resume runs/made"
    assert "after step 100 of 4,000" in words(run)


def test_a_loss_that_is_no_number_is_a_divergence_even_if_nobody_said_so():
    run = Facts(
        "made", "runs/made", CONFIG, step=20, **curves([{"step": 10, "loss": 3.0}, {"step": 20, "loss": "NaN"}])
    )
    assert run.loss == [(10, 3.0)]
    assert "at step 20 the loss was not finite" in words(run)


@pytest.mark.parametrize(("records", "drawn"), [(100, True), (11, False)])
def test_the_faint_line_is_explained_where_it_is_drawn(records, drawn):
    html = losses(facts(falling(records)))
    assert ("each record" in html, "faint line" in html) == (drawn, drawn)


def test_no_better_than_a_guess():
    assert "no better than uniform guessing" in words(facts([4.3] * 50 + [4.25] * 50))
    assert "no better than uniform guessing" not in words(RUNS["flat"])


def test_validation_is_told_as_it_was():
    unmeasured = facts(falling())
    assert "Training stopped before the first evaluation; `regard evaluate runs/made` runs one now." in words(
        unmeasured
    )
    nothing = {**CONFIG, "data": {**CONFIG["data"], "validation": 0.0}}
    assert "No text was held out" in words(replace(unmeasured, config=nothing))
    assert "The only evaluation, at step 4,000, gave a validation loss of 1.7000." in words(facts(falling(), [1.7]))
    assert "best at the last of 4 evaluations: 2.1000" in words(RUNS["falls"])
    assert "The best validation loss, 1.9000, was at step 2,000; the last was 2.6000." in words(RUNS["overfits"])


def test_the_loss_of_a_sample_has_its_interval():
    run = facts(falling(), [1.9, 1.7])
    assert "±" not in words(run)
    run.validation_errors.update({STEPS // 2: 0.02, STEPS: 0.01})
    assert "1.7000 ± 0.0196. Evaluations read a sample" in words(run)
    assert "validation, with its 95% interval" in loss_figure(run)
    assert "best validation loss (± 0.0196)" in tiles(run)


def test_the_training_loss_says_what_it_is_the_mean_of():
    run = facts([9.0] * 30 + [5.0, 5.0, 2.0])
    assert "fell from 9.00 to 4.000 nats per token (mean of the last 3 records);" in words(run)
    assert "<b>4.0000</b><span>training loss (mean of the last 3 records)</span>" in tiles(run)
    assert "training loss (mean of the last 10 records)" in tiles(facts(flat(100)))
    assert "training loss</span>" in tiles(facts([3.0]))


def test_other_measures_than_the_loss_are_told():
    run = facts(falling(), [1.9, 1.7], judged={"accuracy": 0.95, "accuracy_2x": 0.5})
    assert "The last evaluation measured accuracy 0.9500, accuracy 2x 0.5000." in words(run)
    assert "<b>0.9500</b><span>validation accuracy</span>" in tiles(run)
    assert "accuracy" not in words(facts(falling(), [1.9, 1.7])) + tiles(facts(falling(), [1.9, 1.7]))


def test_the_gap_between_training_and_validation():
    assert "are close" in words(RUNS["flat"])
    assert "begins to overfit" in words(facts(flat(), [2.4, 2.2, 2.19, 2.19]))
    assert "are close" not in words(facts(flat(), [2.4, 2.2, 2.19, 2.19]))


def looked(heads=(), positions=None):
    return Inspection(100, list(heads), {}, list("abc"), True, positions)


def test_whether_context_helps():
    falls = PositionLosses([1.5 + 2 * math.exp(-i / 4) for i in range(64)], [0.02] * 64, 500, 500)
    told = words(facts(flat(), inspection=looked(positions=falls)))
    assert "Context helps: the loss falls from 3.50 at the first token of a window to 1.50" in told
    assert "half of it by token 4 and nine tenths of it by token " in told
    level = PositionLosses([2.0 + 0.01 * (i % 3) for i in range(64)], [0.05] * 64, 500, 500)
    assert "Context does not help yet" in words(facts(flat(), inspection=looked(positions=level)))


def test_a_gain_within_the_margin_is_not_denied():
    """Few windows: 0.6 nats are gained, but it might be chance. Neither "helps" nor "does not help" has grounds."""
    curve = [3.2] + [2.6] * 63
    for windows, margin in ((12, 0.5), (3, 0.01)):
        told = words(facts(flat(), inspection=looked(positions=PositionLosses(curve, [margin] * 64, windows, windows))))
        assert f"Whether context helps cannot be decided from {windows} windows of held-out text" in told
        assert "the loss is 3.20 at a window's start and 2.60 in its last quarter" in told
        assert "Context" not in told
    sure = words(facts(flat(), inspection=looked(positions=PositionLosses(curve, [0.3] * 64, 12, 12))))
    assert "Context helps" in sure


@given(
    start=st.floats(0.5, 10),
    end=st.floats(0.1, 10),
    margin=st.floats(0, 5),
    windows=st.integers(1, 50),
)
def test_what_is_said_of_context_is_within_its_margin(start, end, margin, windows):
    positions = PositionLosses([start] + [end] * 63, [margin] * 64, windows, windows)
    told = words(facts(flat(), inspection=looked(positions=positions)))
    gain, unsure = start - end, math.hypot(margin, margin)
    if "Context helps" in told:
        assert gain > unsure
    if "does not help yet" in told:
        assert gain + unsure <= 0.1 * start or gain <= 0.02 * start
    assert ("Context helps" in told) + ("does not help yet" in told) + ("cannot be decided" in told) == 1


def test_what_coincides_is_said_once():
    sudden = PositionLosses([3.5, 3.5] + [1.5] * 62, [0.02] * 64, 500, 500)
    told = words(facts(flat(), inspection=looked(positions=sudden)))
    assert "in its last quarter, nine tenths of it by token 3 of 64." in told
    assert "half" not in told


def head(layer, number, **shares):
    place = LayerName(layer, f"layer {layer}", f"{layer}")
    return Head(layer, number, "x", place, 1.0, *({**dict.fromkeys(Head._fields[5:], 0.1), **shares}.values()))


def test_heads_are_named_by_what_they_do():
    mixture = [head(1, 1, previous=0.8), head(1, 2, previous=0.6), head(2, 1, spread=0.97), head(2, 2)]
    told = words(facts(flat(), inspection=looked(mixture)))
    assert "Of 4 heads, heads 1.1 and 1.2 attend to the previous token; head 2.1 attends evenly to all tokens" in told
    assert "; the other one has no clear pattern." in told
    assert "None of the 2 heads has a clear pattern" in words(
        facts(flat(), inspection=looked([head(1, 1), head(1, 2)]))
    )
    assert "all attend evenly to all tokens" in words(
        facts(flat(), inspection=looked([head(1, n, spread=0.95) for n in (1, 2)]))
    )


def test_cost_is_the_formula_times_the_tokens():
    told = words(replace(facts(flat(), size=ModelSize(800_000, 5e6)), speed=[(1, 9.0), (2, 2000.0)], tokens=10**6))
    assert "2,000 tokens per second" in told  # the first record is that of a machine warming up
    assert "5 TFLOP" in told


@given(
    loss=st.lists(st.floats(0, 1e4) | st.sampled_from([0.0, 1e-30]), max_size=40),
    validation=st.lists(st.floats(0, 1e4), max_size=6),
    step=st.none() | st.integers(0, STEPS),
)
def test_any_losses_give_a_story_and_advice(loss, validation, step):
    run = facts(loss, validation) if step is None else facts(loss, validation, step=step)
    assert words(run)
    assert next_step(run).command.startswith("regard ")
    assert "nan" not in words(run)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--model.width", "64", "--seed", "9"],
        ["--train.optimizer", "adamw", "--train.optimizer.betas", "0.8,0.9"],
        ["--model.cap", "none", "--data.path", "a file.txt", "--model.position", "learned"],
    ],
)
def test_differences_are_the_options_that_lead_there(options):
    """From the recipe to any config: the command that the report prints gives that very config."""
    from regard.report.config_diff import command

    wanted = override(get("shakespeare"), options)
    found = [d for d in differences(dump(wanted), dump(get("shakespeare"))) if d.key not in AUTOMATIC]
    line = shlex.split(command("shakespeare", {d.key: d.value for d in found}))
    assert override(get("shakespeare"), line[3:]) == wanted


def test_heads_of_a_translation_have_the_names_of_the_page() -> None:
    """The report writes e1 and d2×, as the page does, and the legend of the entropies explains them."""
    paths = [f"{path}.mechanism" for path in ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross")]
    names = layer_names(paths)
    heads = [head(i + 1, 2, previous=0.1 + 0.6 * (i != 1))._replace(layer_name=name) for i, name in enumerate(names)]
    told = facts(flat(), inspection=looked(heads), spread={(path, 2): [(0, 0.5), (9, 0.4)] for path in paths})
    assert "heads e1.2 and d1×.2 attend to the previous token" in words(told)
    chart = entropy_chart(told)
    assert [series.name for series in chart.series] == ["e1.2", "d1.2", "d1×.2"]
    assert [series.name for series in chart.legend or []] == [
        *("e1: encoder layer 1", "d1: decoder layer 1", "d1×: decoder layer 1, cross"),
    ]
