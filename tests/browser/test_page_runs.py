"""Runs view: metrics, differences, samples and findings, also during training."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_kit import PIXELS, Tab, parse_export
from browser_runs import language
from serve_kit import REGARD, run_server  # pyright: ignore[reportMissingImports]

from regard.config import to_toml
from regard.data import TextConfig
from regard.runs import Run

CHART = "document.querySelector('[aria-label=Metrics] [role=img]')"


def chart_label(tab: Tab) -> str:
    """Return the accessible name of the chart."""
    return tab.page.get_by_role("region", name="Metrics").get_by_role("img").get_attribute("aria-label")


def count_pixels(tab: Tab) -> dict[str, int]:
    """Count the pixels of the chart in the color of each run and of findings."""
    return tab.page.locator(".uplot canvas").evaluate(
        f"""canvas => {{
            const style = getComputedStyle(document.documentElement), counts = {{}}, {{ data }} = ({PIXELS})(canvas);
            for (const name of ["--c0", "--c1", "--warn"]) {{
                const color = style.getPropertyValue(name).trim().match(/\\w\\w/g).map((hex) => parseInt(hex, 16));
                counts[name] = 0;
                for (let i = 0; i < data.length; i += 4) counts[name] += color.every((v, c) => data[i + c] === v);
            }}
            return counts;
        }}"""
    )


def test_one_and_several_runs(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain")
    page.get_by_role("heading", name="loss").wait_for()
    metrics = Run.open(runs / "plain").metrics()
    loss = [record["loss"] for record in metrics if "loss" in record][-1]
    tab.wait_until(CHART)
    assert float(re.findall(r"loss: ([\d.]+) at step 40", chart_label(tab))[0]) == float(f"{loss:.3g}")
    assert count_pixels(tab)["--c0"] > 50
    page.get_by_role("checkbox", name="wide").check()
    tab.wait_until(f"{CHART}.ariaLabel.includes('wide:')")
    assert min(count_pixels(tab)[name] for name in ("--c0", "--c1")) > 50
    rows = page.get_by_role("region", name="Differences").get_by_role("row").all_inner_texts()
    assert [row.split() for row in rows[1:]] == [["model.width", "32", "48"]]
    assert tab.params()["runs"] == "plain,wide"
    tab.page.reload()
    page.get_by_role("region", name="Differences").get_by_role("row").nth(1).wait_for()
    assert page.get_by_role("checkbox", name="wide").is_checked()
    page.get_by_label("Metric", exact=True).select_option("validation_loss")
    page.get_by_role("button", name="log").click()
    tab.wait_until(f"{CHART}.ariaLabel.startsWith('validation')")
    assert tab.params() == {"runs": "plain,wide", "run": "plain", "metric": "validation_loss", "scale": "log"}
    page.get_by_text("Values as a table").click()
    assert page.get_by_role("region", name="Metrics").get_by_role("row").count() >= 8


def test_samples_by_step(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain")
    samples = [json.loads(line) for line in (runs / "plain" / "samples.jsonl").read_text().splitlines()]
    assert len({sample["step"] for sample in samples}) > 1
    page.get_by_role("region", name="Samples").wait_for()
    slider = page.get_by_label("Step of the samples")
    for key, sample in (("End", samples[-1]), ("Home", samples[0])):
        slider.press(key)
        tab.wait_until("document.querySelector('[aria-label=Samples] pre').textContent.endsWith(arg)", sample["text"])
    assert tab.params()["sample"] == str(samples[0]["step"])


def test_findings_are_listed_and_marked_in_the_chart(tab: Tab, runs: Path) -> None:
    findings = [json.loads(line) for line in (runs / "wild" / "findings.jsonl").read_text().splitlines()]
    finding = next(finding for finding in findings if finding["kind"] == "rate_too_high")
    page = tab.open("runs", runs="wild")
    card = page.get_by_role("region", name="Findings")
    card.get_by_role("heading", name="The learning rate is too high").wait_for()
    text = card.inner_text()
    assert finding["where"] in text
    assert finding["change"] in text
    assert "undefined" not in text
    assert count_pixels(tab)["--warn"] > 50
    tab.open("runs", runs="plain")
    tab.wait_until(f"{CHART}?.ariaLabel.includes('at step 40')")
    if not (runs / "plain" / "findings.jsonl").exists():
        assert count_pixels(tab)["--warn"] == 0


def test_live_training(chromium: Any, runs: Path, tmp_path: Path) -> None:
    base = language(tmp_path)
    experiment = replace(base, train=replace(base.train, steps=1200, log_every=4, evaluate_every=50, save_every=1200))
    (tmp_path / "live.toml").write_text(to_toml(experiment))
    folder = tmp_path / "runs"
    folder.mkdir()
    command = [*REGARD, "train", str(tmp_path / "live.toml"), "--name", "live", "--runs", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(tmp_path / "cache")}
    with run_server(folder) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        tab.page.get_by_text("No runs yet").wait_for()
        training = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tab.page.get_by_role("checkbox", name="live").wait_for()
            tab.page.locator(".live").wait_for()  # the live indicator
            chart = f"{CHART}?.ariaLabel.match(/loss: .* at step (\\d+)/)?.[1]"
            tab.wait_until(f"Number({chart}) >= 4")
            listed = (
                "document.querySelector('[aria-label=\"Run list\"] li').innerText.match(/(\\d+) (of \\S+ )?steps/)?.[1]"
            )
            facts = "[...document.querySelectorAll('[aria-label=\"Selected runs\"] tr')]"
            steps = f"{facts}.find((row) => row.cells[0].innerText === 'steps')?.cells[1].innerText"
            newest = f"{CHART}?.ariaLabel.match(/loss: .*? at step (\\d+)/)?.[1]"
            tab.wait_until(f"{newest} === {listed} && {newest} === {steps}")  # all of the newest logged step
            first = int(tab.page.evaluate(chart))
            tab.wait_until(f"Number({chart}) > arg + 40", first)
            assert training.poll() is None, "training ended before the chart was updated"
            assert not [url for url in tab.requests if "metrics" in url][1:], (
                "the stream sends the metrics; they are not requested again"
            )
            tab.wait_until(f"{chart} === '1200'")
            tab.page.locator(".live").wait_for(state="detached")
            tab.page.get_by_role("region", name="Samples").wait_for()
            assert training.wait(timeout=60) == 0
        finally:
            training.kill()
            training.wait()
        tab.close()


def test_json_export(tab: Tab, runs: Path) -> None:
    tab.open("runs", runs="plain,wide")
    tab.wait_until(f"{CHART}?.ariaLabel.includes('wide:')")
    saved = parse_export(tab.export("JSON"))
    assert [item["run"]["name"] for item in saved] == ["plain", "wide"]
    column = saved[0]["columns"].index("loss")
    losses = [row[column] for row in saved[0]["rows"] if row[column] is not None]
    assert losses == [record["loss"] for record in Run.open(runs / "plain").metrics() if "loss" in record]


def test_horizontal_axis_smoothing_and_zoom(tab: Tab, runs: Path) -> None:
    # The axis titles are drawn on a canvas: record its texts.
    tab.page.add_init_script(
        """window.drawn = []; const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            window.drawn.push(text); return draw.call(this, text, ...rest); };"""
    )
    page = tab.open("runs", runs="plain")
    page.reload()
    tab.wait_until("drawn.includes('step') && drawn.includes('loss (nats per token)')")
    for axis, title in (("tokens", "tokens"), ("time", "time in seconds"), ("flops", "FLOPs")):
        page.get_by_label("Horizontal axis").select_option(axis)
        tab.wait_until("drawn.includes(arg)", title)
        assert tab.params()["x"] == axis
    page.get_by_label("Horizontal axis").select_option("step")
    losses = [record["loss"] for record in Run.open(runs / "plain").metrics() if "loss" in record]
    assert float(re.findall(r"loss: ([\d.]+) at step 40", chart_label(tab))[0]) == float(f"{losses[-1]:.3g}")
    page.get_by_label("smoothing").fill("0.9")
    mean, total = 0.0, 0.0
    for loss in losses:
        mean, total = 0.9 * mean + 0.1 * loss, 0.9 * total + 0.1
    tab.wait_until(f"{CHART}.ariaLabel.includes(arg)", f" {mean / total:.3g} at step 40")
    chart = page.locator(".u-over")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    tab.wait_until("location.hash.includes('zoom=')")
    low, high = map(float, tab.params()["zoom"].split(","))
    assert 15 < low < 25 < 32 < high < 40
    page.get_by_role("button", name="Reset zoom").click()
    assert "zoom" not in tab.params()


def test_dashed_in_the_legend_where_dashed_in_the_plot(tab: Tab) -> None:
    page = tab.open("runs", runs="plain,wide")
    button = page.get_by_role("button", name="plain, validation")
    button.wait_for()
    assert button.locator("line").get_attribute("stroke-dasharray")
    assert (
        not page.get_by_role("button", name=re.compile(r"^plain \d")).locator("line").get_attribute("stroke-dasharray")
    )
    button.click()
    assert button.get_attribute("aria-pressed") == "false"


def test_losses_of_different_tokenizers_are_compared_in_bits_per_byte(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain,bpe", metric="validation_loss")
    page.get_by_text("compared in bits per byte").wait_for()
    tab.wait_until(f"{CHART}?.ariaLabel.includes('bpe:') && {CHART}.ariaLabel.includes('plain:')")
    label = chart_label(tab)
    for name in ("plain", "bpe"):
        run = Run.open(runs / name)
        data = run.load(TextConfig, "data").build(64)
        loss = [record["validation_loss"] for record in run.metrics() if "validation_loss" in record][-1]
        scale = data.validation_count / data.amount("validation")[1] / math.log(2)
        assert f"{name}: {loss * scale:.3g}".rstrip("0") in label
    assert page.get_by_label("Unit").locator("option", has_text="nats").is_disabled()


def test_unknown_runs_are_named(tab: Tab) -> None:
    page = tab.open("runs", runs="plain,removed")
    page.get_by_role("alert").get_by_text("no run named “removed”").wait_for()
    assert page.get_by_role("checkbox", checked=True).count() == 1
    for view in ("attention", "sampling", "probes"):
        page = tab.open(view, run="plain", text="漢")
        page.get_by_role("alert").get_by_text("漢").wait_for()
        page = tab.open(view, run="removed", text="漢")
        page.get_by_role("alert").get_by_text("no run named “removed”").wait_for()
        assert page.get_by_role("alert").count() == 1  # nothing is left of the other run
        assert page.get_by_label("Run", exact=True).input_value() == ""


def test_many_runs_search_tags_notes_and_report(chromium: Any, runs: Path, tmp_path: Path) -> None:
    for number in range(18):
        shutil.copytree(runs / "plain", tmp_path / f"sweep-{number}", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "sweep-3" / "report.html").write_text("<!doctype html><title>a</title><h1>the report</h1>")
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        page = tab.page
        page.goto(f"{tab.origin}/?token={server.token}")
        page.get_by_role("button", name="All", exact=True).click()
        page.get_by_text("At most 16 runs are shown together").wait_for()
        assert page.get_by_role("checkbox", checked=True).count() == 16
        tab.wait_until("document.querySelectorAll('.legend button').length === 32")  # each with its validation loss
        page.get_by_role("button", name="None", exact=True).click()
        page.get_by_label("Search runs").fill("sweep-3")
        tab.wait_until("document.querySelectorAll('[aria-label=\"Run list\"] li').length === 1")
        page.get_by_role("checkbox", name="sweep-3").check()
        page.get_by_label("Tags of sweep-3").fill("baseline, tiny")
        page.get_by_label("Note on sweep-3").fill("the first one")
        page.get_by_label("Search runs").fill("baseline first")
        page.get_by_role("checkbox", name="sweep-3").wait_for()
        tab.wait_until("document.querySelectorAll('[aria-label=\"Run list\"] .tag').length === 2")
        saved = json.loads((tmp_path / "sweep-3" / "notes.json").read_text())
        assert saved == {"tags": ["baseline", "tiny"], "note": "the first one"}
        with page.expect_popup() as popup:
            page.get_by_role("link", name="report").click()
        popup.value.get_by_role("heading", name="the report").wait_for()
        popup.value.close()
        tab.close()


def test_two_runs_side_by_side(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain,wide")
    table = page.get_by_role("region", name="Selected runs").get_by_role("table")
    table.get_by_text("parameters").wait_for()
    tab.wait_until("document.querySelector('[aria-label=\"Selected runs\"]').innerText.includes('validation loss')")
    rows = {row[0]: row[1:] for row in (line.split("\t") for line in table.inner_text().splitlines()) if len(row) == 4}
    first, second = (
        [record["validation_loss"] for record in Run.open(runs / name).metrics() if "validation_loss" in record][-1]
        for name in ("plain", "wide")
    )
    assert rows["validation loss, last"][:2] == [f"{first:.4g}", f"{second:.4g}"]
    assert float(rows["validation loss, last"][2].replace("−", "-")) == pytest.approx(second - first, abs=1e-3)


def test_a_damaged_checkpoint_is_named(chromium: Any, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "plain", tmp_path / "plain")
    newest = max((tmp_path / "plain" / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"")
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        tab.page.get_by_role("alert").get_by_text(f"plain: checkpoint {newest.name} is damaged").wait_for()
        tab.close()


def test_the_page_opens_with_the_newest_run_that_has_metrics(chromium: Any, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "plain", tmp_path / "plain")
    shutil.copytree(runs / "plain", tmp_path / "new", ignore=shutil.ignore_patterns("metrics.jsonl"))
    later = os.stat(tmp_path / "plain").st_mtime + 60
    os.utime(tmp_path / "new" / "environment.json", (later, later))
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        tab.wait_until(CHART)
        assert tab.page.get_by_role("checkbox", name="plain").is_checked()
        assert not tab.page.get_by_role("checkbox", name="new").is_checked()
        tab.page.get_by_role("checkbox", name="plain").uncheck()
        tab.page.get_by_role("checkbox", name="new").check()
        tab.page.get_by_text("No metrics yet").wait_for()
        assert tab.page.get_by_label("Metric", exact=True).is_hidden()  # nothing to choose from
        tab.close()
