"""The files in docs/scale.md: their syntax, and that `regard train` takes the options in them."""

import re
import shlex
import subprocess

import pytest

from docs_kit import ROOT
from regard.commands import options_of
from regard.config.command_line import parse, read_options

PAGE = (ROOT / "docs" / "scale.md").read_text("utf-8")
BLOCKS = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_command_takes_its_options():
    lines = "\n".join(BLOCKS).replace("\\\n", " ").splitlines()
    commands = [line.partition("regard train")[2] for line in lines if "regard train " in line]
    assert len(commands) == 6
    for command in commands:
        table = options_of("train")
        assert read_options(table, parse(shlex.split(command), table), "regard train").recipe == "shakespeare"


def bash(script: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_batch_script_is_bash():
    (script,) = [block for block in BLOCKS if block.startswith("#!/bin/bash")]
    bash(script)
    assert len(re.findall(r"^#SBATCH --[a-z-]+(=\S+)?$", script, re.MULTILINE)) == script.count("#SBATCH")


def test_the_jobset_is_yaml_and_its_numbers_agree():
    yaml = pytest.importorskip("yaml")
    (text,) = [block for block in BLOCKS if block.startswith("apiVersion")]
    jobset = yaml.safe_load(text)
    (workers,) = jobset["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    (script,) = container["args"]
    bash(script)
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert all(isinstance(value, str) for value in variables.values())
    assert (
        variables["MASTER_ADDR"] == f"{jobset['metadata']['name']}-{workers['name']}-0-0.{jobset['metadata']['name']}"
    )
    assert job["completions"] == job["parallelism"]
    assert f"--nnodes={job['completions']} " in script
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']} " in script
    assert int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
