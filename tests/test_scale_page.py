"""The files in docs/scale.md: their syntax, and that the commands take the options in them."""

import ast
import inspect
import re
import shlex
import subprocess
from collections import Counter

import pytest

import regard
from docs_kit import ROOT
from regard.commands import options_of
from regard.config.command_line import parse, read_options

PAGE = (ROOT / "docs" / "scale.md").read_text("utf-8")
BLOCKS = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_command_takes_its_options():
    lines = "\n".join(BLOCKS).replace("\\\n", " ").splitlines()
    checked = Counter()
    for line in lines:
        for name in ("train", "resume", "plan"):
            if f"regard {name} " in line:
                command = line.partition(f"regard {name} ")[2].partition("  #")[0]
                table = options_of(name)
                options = read_options(table, parse(shlex.split(command), table), f"regard {name}")
                if "--layout" in command and "--processes" in command:
                    options.layout.of(options.processes)
                checked[name] += 1
    assert checked == {"train": 14, "resume": 2, "plan": 2}


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


def test_the_task_of_skypilot_is_yaml_and_bash():
    yaml = pytest.importorskip("yaml")
    (text,) = [block for block in BLOCKS if "SKYPILOT_NODE_RANK" in block]
    task = yaml.safe_load(text)
    assert set(task) == {"name", "num_nodes", "resources", "volumes", "setup", "run"}
    (shared,) = task["volumes"]
    assert f"--runs {shared}/" in task["run"]
    bash(task["run"])


def test_the_program_for_ray_is_python_and_calls_what_there_is():
    (text,) = [block for block in BLOCKS if "ray.train" in block]
    tree = ast.parse(text)
    (call,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "regard.train"
    ]
    given = [ast.unparse(value) for value in call.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert inspect.signature(regard.train).bind(*given, **named).arguments["name"] == "'plays'"
