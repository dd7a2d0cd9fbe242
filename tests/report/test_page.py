"""The page: whole and harmless for every kind of run, with a sentence for whatever is missing."""

import json
import os
import re
import shutil
import signal
from html.parser import HTMLParser

import pytest
from report_kit import experiment, start, trained

from regard.commands.report import ReportOptions, nearest_recipe, report
from regard.errors import UserError
from regard.pages.html import sha256
from regard.report import ModelMeasurements, gather, report_at_end, write
from regard.report.page import page
from regard.runs import Run
from regard.runs.asked import ASKED
from regard.runs.paths import FOLDER
from regard.train import AdamWConfig, ConstantScheduleConfig, Diverged, Observer, train
from warm_process import regard

VOID = {"meta", "br", "path", "circle", "rect", "image"}


class Checker(HTMLParser):
    """Collects text and tags, and fails where one is not closed."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [str(given["id"])] if "id" in given else []
        self.addresses += [str(given[name]) for name in ("href", "src") if name in given]
        assert not [name for name in given if name.startswith("on")], given
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)


def checked(html: str) -> Checker:
    """The page, after what must hold for every one of them."""
    seen = Checker()
    seen.feed(html)
    seen.close()
    assert seen.open == []
    assert seen.tags.count("script") == 1
    (script,) = re.findall("<script>(.*?)</script>", html, re.S)
    assert f"script-src '{sha256(script)}'" in html  # no other script runs
    assert "link" not in seen.tags
    assert all(address.startswith("data:image/png;base64,") for address in seen.addresses)
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in html
    assert len(seen.ids) == len(set(seen.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(seen.ids)
    assert not re.search(r"\bNone\b(?! of)", " ".join(seen.text)), "a value is missing somewhere"
    assert not re.search(r'(d|cx|cy|x|y)="[^"]*\b(nan|inf)\b[^"]*"', html), "a figure has a point nowhere"
    return seen


def headings(html: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", html)


EVERYTHING = [
    "Loss",
    "Samples",
    "Attention maps",
    "Attention entropy",
    "Loss by position",
    "Gradient norm by layer",
    "Cost",
    "Settings that differ from the defaults",
    "Environment",
]


def test_a_finished_run_shows_everything_and_its_text_as_text(text, tmp_path):
    run = trained(tmp_path, experiment(text, {"context": 80}), [ModelMeasurements()])
    html = page(gather(run))
    seen = checked(html)
    assert headings(html) == EVERYTHING
    shown = "".join(seen.text)
    assert "<script>alert('&lt;')</script>" in shown  # the passage, as it is in the file
    assert len(html) < 2_000_000
    assert html.count("<mask") == 4
    assert "data-plot=" in html  # curves have values under the pointer and zoom
    assert "data-tokens=" in html
    assert "layer 1</li>" in html  # as on the page of `regard serve`, not blocks.0
    assert "blocks.0</li>" not in html
    assert all(svg in seen.tags for svg in ("svg", "title", "desc", "details"))


def test_the_requested_config_keeps_its_lines(text, tmp_path):
    run = trained(tmp_path, experiment(text), [])
    path = run.file("environment.json")
    asked = 'seed = 1\n\n[data]\npath = "<b>"\n'
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {ASKED: asked}), encoding="utf-8")
    html = page(gather(run))
    checked(html)
    _, _, shown = html.partition("<h2>Environment</h2>")
    assert "<summary>Requested config</summary>" in shown
    assert "seed = 1\n\n[data]\npath = &quot;&lt;b&gt;&quot;\n</pre>" in shown
    assert f'<th scope="row">{ASKED}<' not in shown
    assert f'<th scope="row">{FOLDER}<' not in shown
    assert '<th scope="row">torch<' in shown


def test_without_held_out_text(text, tmp_path):
    html = page(gather(trained(tmp_path, experiment(text, validation=0.0), [ModelMeasurements()])))
    checked(html)
    assert "No text was held out" in html
    assert "two whole windows of held-out text" in html
    assert "Loss by position" not in headings(html)
    assert "training passage" in html


class Stop(Observer):
    def stepped(self, step):
        if step.step == 5:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run(text, tmp_path):
    wanted = experiment(text)
    run = start(tmp_path, wanted)
    with report_at_end(run):
        assert train(wanted, run, [ModelMeasurements(), Stop()]).interrupted
    html = run.file("report.html").read_text(encoding="utf-8")
    checked(html)
    assert re.search("after step [56] of 8", html)  # the step that the signal found under way is finished
    assert "regard resume" in html


def test_a_stop_between_two_records_counts_every_step(text, tmp_path):
    wanted = experiment(text, log_every=4)
    run = start(tmp_path, wanted)
    result = train(wanted, run, [Stop()])
    assert result.interrupted
    assert max(m["step"] for m in run.metrics()) == 4 < result.step
    facts = gather(run)
    assert (facts.step, facts.tokens, facts.seconds) == (result.step, result.tokens, result.seconds)
    assert f"Training stopped early, after step {result.step} of 8." in page(facts)


def test_the_curve_begins_with_the_first_step(text, tmp_path):
    run = trained(tmp_path, experiment(text, log_every=5), [])
    assert [step for step, _ in gather(run).loss] == [1, 5, 8]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_diverged_run(text, tmp_path):
    optimizer = AdamWConfig(lr=1e30)
    wanted = experiment(
        text, optimizer=optimizer, schedule=ConstantScheduleConfig(), clip=None, save_every=1, evaluate_every=1
    )
    run = start(tmp_path, wanted)
    with pytest.raises(Diverged), report_at_end(run):
        train(wanted, run, [ModelMeasurements()])
    html = run.file("report.html").read_text(encoding="utf-8")
    checked(html)
    assert "It diverged: at step" in html
    assert run.metrics()[-1]["diverged"].startswith("at step")
    assert "lower learning rate" in html


def test_a_run_that_fails_before_its_first_step_leaves_nothing(text, tmp_path):
    class Late(Observer):
        def started(self, start):
            raise UserError("not today")

    wanted = experiment(text)
    run = start(tmp_path, wanted)
    with pytest.raises(UserError, match="not today"), report_at_end(run):
        train(wanted, run, [ModelMeasurements(), Late()])
    assert run.metrics() == run.samples() == []
    assert not run.file("report.html").exists()


def test_a_run_without_its_checkpoint(text, tmp_path):
    run = trained(tmp_path, experiment(text), [ModelMeasurements()])
    shutil.rmtree(run.file("checkpoints"))
    html = page(gather(run))
    checked(html)
    assert "has no checkpoint yet" in html
    left = {"Attention maps", "Loss by position"}
    assert headings(html) == [h for h in EVERYTHING if h not in left] + ["Left out"]
    assert "parameters" in html  # these follow from the config


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_run_without_its_text(text, tmp_path, harm):
    run = trained(tmp_path, experiment(text), [ModelMeasurements()])
    if harm == "gone":
        text.unlink()
    else:
        text.write_text(text.read_text(encoding="utf-8").replace("a", "s"), encoding="utf-8")
    html = page(gather(run))
    checked(html)
    assert "Attention maps and loss by position are left out" in html


def test_a_run_that_nobody_watched_and_a_damaged_environment(text, tmp_path):
    run = trained(tmp_path, experiment(text), [])
    run.file("environment.json").write_text("{", encoding="utf-8")
    html = page(gather(run))
    checked(html)
    missing = {"Samples", "Attention entropy", "Gradient norm by layer", "Environment"}
    assert headings(html) == [h for h in EVERYTHING if h not in missing] + ["Left out"]


def test_a_model_of_a_kind_that_is_not_known(text, tmp_path):
    run = trained(tmp_path, experiment(text), [ModelMeasurements()])
    config = run.file("config.toml")
    config.write_text(config.read_text(encoding="utf-8").replace('"gpt"', '"dream"'), encoding="utf-8")
    run.file("MANIFEST.json").unlink()
    run = Run.open(run.path)
    html = page(gather(run))
    checked(html)
    assert "Parameters and FLOPs are left out" in html
    assert "Loss" in headings(html)


def test_of_many_layers_some_are_drawn_and_the_page_says_so(text, tmp_path, monkeypatch):
    from regard.report import inspection

    monkeypatch.setattr(inspection, "MAPS", 4)
    run = trained(tmp_path, experiment(text, {"layers": 5}, steps=1), [ModelMeasurements()])
    html = page(gather(run))
    checked(html)
    assert re.findall('<mask id="(m[^"]+)"', html) == ["m1-1", "m1-2", "m5-1", "m5-2"]
    assert "4 of 10 heads are drawn" in html


def test_a_run_that_never_began(text, tmp_path):
    html = page(gather(start(tmp_path, experiment(text))))
    checked(html)
    assert "no step is recorded yet" in html


def test_the_command_writes_and_tells_where(text, tmp_path, capsys, monkeypatch):
    older = trained(tmp_path / "runs", experiment(text), [], "older")
    os.utime(older.file("config.toml"), (1, 1))
    run = trained(tmp_path / "runs", experiment(text), [ModelMeasurements()], "newer")
    capsys.readouterr()
    assert report(ReportOptions(runs=tmp_path / "runs")) == 0
    assert capsys.readouterr().out.strip() == str(run.file("report.html"))
    checked(run.file("report.html").read_text(encoding="utf-8"))
    out = tmp_path / "elsewhere.html"
    assert report(ReportOptions(run="older", runs=tmp_path / "runs", out=out, json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(out)
    assert told["next"].startswith("regard resume")
    assert "<title>older" in out.read_text(encoding="utf-8")
    assert not older.file("report.html").exists()
    with pytest.raises(UserError, match="there is no folder"):
        report(ReportOptions(run="older", runs=tmp_path / "runs", out=tmp_path / "no" / "x.html"))
    assert not list(run.path.glob(".tmp-*"))


def test_the_command_line_knows_it(text, tmp_path):
    run = trained(tmp_path / "runs", experiment(text), [])
    done = regard(tmp_path, "report", "--runs", str(tmp_path / "runs"))
    assert (done.returncode, done.stdout.strip()) == (0, str(run.file("report.html")))
    nothing = regard(tmp_path, "report", "--runs", str(tmp_path / "none"))
    assert nothing.returncode == 2
    assert "there is no run" in nothing.stderr


def test_the_nearest_recipe(text, tmp_path):
    from regard.recipes import get

    assert nearest_recipe(start(tmp_path, get("shakespeare"), "a"))[0] == "shakespeare"
    assert nearest_recipe(start(tmp_path, get("shakespeare-small"), "b"))[0] == "shakespeare-small"


def test_a_report_that_fails_does_not_take_the_training_with_it(text, tmp_path, capsys):
    run = trained(tmp_path, experiment(text), [])
    run.file("report.html").mkdir()
    with report_at_end(run):
        pass
    assert "the report could not be written" in capsys.readouterr().err


def test_writing_replaces_the_old_one(text, tmp_path):
    run = trained(tmp_path, experiment(text), [])
    run.file("report.html").write_text("old", encoding="utf-8")
    assert write(run, gather(run)) == run.file("report.html")
    assert "old" not in run.file("report.html").read_text(encoding="utf-8")[:100]
