"""Runs: curves over each other, differences, samples, findings, and all of it while a run trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from browser_kit import PIXELS, Tab, told
from browser_runs import language
from serve_kit import REGARD, serving  # pyright: ignore[reportMissingImports]

from regard.config import to_toml
from regard.runs import Run

CHART = "document.querySelector('[aria-label=Curves] [role=img]')"


def label(tab: Tab) -> str:
    """What the chart says of itself."""
    return tab.page.get_by_role("region", name="Curves").get_by_role("img").get_attribute("aria-label")


def painted(tab: Tab) -> dict[str, int]:
    """How many pixels of the chart have the colour of each run, and of findings."""
    return tab.page.locator(".uplot canvas").evaluate(
        f"""canvas => {{
            const style = getComputedStyle(document.documentElement), found = {{}}, {{ data }} = ({PIXELS})(canvas);
            for (const name of ["--c0", "--c1", "--warn"]) {{
                const ink = style.getPropertyValue(name).trim().match(/\\w\\w/g).map((one) => parseInt(one, 16));
                found[name] = 0;
                for (let i = 0; i < data.length; i += 4) found[name] += ink.every((one, c) => data[i + c] === one);
            }}
            return found;
        }}"""
    )


def test_one_run_then_several_over_each_other(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain")
    page.get_by_role("heading", name="loss").wait_for()
    last = Run.open(runs / "plain").metrics()
    loss = [record["loss"] for record in last if "loss" in record][-1]
    tab.until(CHART)
    assert float(re.findall(r"loss: ([\d.]+) at step 40", label(tab))[0]) == float(f"{loss:.3g}")
    assert painted(tab)["--c0"] > 50
    page.get_by_role("checkbox", name="wide").check()
    tab.until(f"{CHART}.ariaLabel.includes('wide:')")
    assert min(painted(tab)[name] for name in ("--c0", "--c1")) > 50
    rows = page.get_by_role("region", name="Differences").get_by_role("row").all_inner_texts()
    assert [row.split() for row in rows[1:]] == [["model.width", "32", "48"]]
    assert tab.params()["runs"] == "plain,wide"
    tab.page.reload()
    page.get_by_role("region", name="Differences").get_by_role("row").nth(1).wait_for()
    assert page.get_by_role("checkbox", name="wide").is_checked()
    page.get_by_label("What to plot").select_option("validation_loss")
    page.get_by_role("button", name="log").click()
    tab.until(f"{CHART}.ariaLabel.startsWith('validation')")
    assert tab.params() == {"runs": "plain,wide", "run": "plain", "metric": "validation_loss", "scale": "log"}
    page.get_by_text("The numbers as a table").click()
    assert page.get_by_role("region", name="Curves").get_by_role("row").count() >= 8


def test_samples_are_those_of_the_run_at_each_step(tab: Tab, runs: Path) -> None:
    page = tab.open("runs", runs="plain")
    written = [json.loads(line) for line in (runs / "plain" / "samples.jsonl").read_text().splitlines()]
    assert len({one["step"] for one in written}) > 1
    samples = page.get_by_role("region", name="Samples")
    samples.wait_for()
    slider = page.get_by_label("Step of the sample")
    for key, one in (("End", written[-1]), ("Home", written[0])):
        slider.press(key)
        tab.until("document.querySelector('[aria-label=Samples] pre').textContent.endsWith(arg)", one["text"])
    assert tab.params()["sample"] == str(written[0]["step"])


def test_findings_are_told_and_stand_on_the_time_line(tab: Tab, runs: Path) -> None:
    found = [json.loads(line) for line in (runs / "wild" / "findings.jsonl").read_text().splitlines()]
    hot = next(one for one in found if one["kind"] == "rate_too_high")
    page = tab.open("runs", runs="wild")
    card = page.get_by_role("region", name="Findings")
    card.get_by_role("heading", name="The learning rate is too high").wait_for()
    said = card.inner_text()
    assert hot["where"] in said
    assert hot["change"] in said
    assert "undefined" not in said
    assert painted(tab)["--warn"] > 50
    tab.open("runs", runs="plain")
    tab.until(f"{CHART}?.ariaLabel.includes('at step 40')")
    if not (runs / "plain" / "findings.jsonl").exists():
        assert painted(tab)["--warn"] == 0


def test_a_run_appears_and_grows_while_it_trains(chromium: Any, runs: Path, tmp_path: Path) -> None:
    calm = language(tmp_path)
    wanted = replace(calm, train=replace(calm.train, steps=400, log_every=4, evaluate_every=50, save_every=400))
    (tmp_path / "live.toml").write_text(to_toml(wanted))
    folder = tmp_path / "runs"
    folder.mkdir()
    command = [*REGARD, "train", str(tmp_path / "live.toml"), "--name", "live", "--runs", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(tmp_path / "cache")}
    with serving(folder) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        tab.page.get_by_text("No runs yet").wait_for()
        training = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tab.page.get_by_role("checkbox", name="live").wait_for()
            tab.page.locator(".live").wait_for()  # the sign beside the curve
            chart = f"{CHART}?.ariaLabel.match(/loss: .* at step (\\d+)/)?.[1]"
            tab.until(f"Number({chart}) >= 4")
            early = int(tab.page.evaluate(chart))
            tab.until(f"Number({chart}) > arg + 40", early)
            assert training.poll() is None, "it was over before it was seen to grow"
            assert not [url for url in tab.asked if "metrics" in url][1:], (
                "the stream brings the numbers, not asking again"
            )
            tab.until(f"{chart} === '400'")
            tab.page.locator(".live").wait_for(state="detached")
            tab.page.get_by_role("region", name="Samples").wait_for()
            assert training.wait(timeout=60) == 0
        finally:
            training.kill()
            training.wait()
        tab.close()


def test_the_export_holds_the_numbers(tab: Tab, runs: Path) -> None:
    tab.open("runs", runs="plain,wide")
    tab.until(f"{CHART}?.ariaLabel.includes('wide:')")
    saved = told(tab.exported("JSON"))
    assert [one["run"]["name"] for one in saved] == ["plain", "wide"]
    at = saved[0]["columns"].index("loss")
    mine = [row[at] for row in saved[0]["rows"] if row[at] is not None]
    assert mine == [record["loss"] for record in Run.open(runs / "plain").metrics() if "loss" in record]
