"""``certificate.json``: the results with what is needed to repeat them (request, versions, hashes, seeds); its page."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch

from regard.config import dump
from regard.errors import UserError
from regard.pages.html import heading, key_values, page, paragraphs, section, table
from regard.prove.model_under_test import ModelUnderTest
from regard.prove.registry import Certificate
from regard.runs.disk import JsonObject, parse_object, replace_file
from regard.runs.environment import environment

SCHEMA = 1


def certificate_record(certificate: Certificate, subject: ModelUnderTest, request: JsonObject) -> JsonObject:
    """The certificate as data; ``request`` holds the options that repeat it."""
    hashes = _hashes(subject)
    return {"schema": SCHEMA, "request": request, "hashes": hashes, "made_by": environment(), **certificate.plain()}


def _hashes(subject: ModelUnderTest) -> JsonObject:
    """SHA-256 of the weights, the model's config and the data; None for what there is not."""
    weights = hashlib.sha256()
    for module in subject.modules:
        for name, x in sorted(module.state_dict().items()):
            weights.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
            weights.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    config = None
    if subject.model is not None:
        config = hashlib.sha256(json.dumps(dump(subject.model.config), sort_keys=True).encode()).hexdigest()
    data = subject.data.sha256 if subject.data is not None else None
    return {"weights": weights.hexdigest() if subject.modules else None, "config": config, "data": data}


def write_certificate(record: JsonObject, path: Path) -> Path:
    """Write the file, and its page beside it; return the path of the page."""
    replace_file(path, (json.dumps(record, indent=1) + "\n").encode())
    replace_file(path.with_suffix(".html"), certificate_page(record, path.name).encode())
    return path.with_suffix(".html")


def read_certificate(path: Path) -> JsonObject:
    """A certificate file; a ``UserError`` if it is none."""
    try:
        record = parse_object(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); give the certificate.json of `regard prove`") from None
    except ValueError as error:
        raise UserError(f"{path} is not a certificate ({error}); make one with `regard prove --out`") from None
    shapes = {"schema": int, "request": dict, "hashes": dict, "made_by": dict, "claims": list}
    wrong = next((key for key, kind in shapes.items() if not isinstance(record.get(key), kind)), None)
    if wrong is None and record["schema"] != SCHEMA:
        wrong = f"schema {SCHEMA}"
    if wrong is None and not all(isinstance(one, dict) and {"claim", "verdict"} <= {*one} for one in record["claims"]):
        wrong = "claim and verdict of each claim"
    if wrong is not None:
        raise UserError(f"{path} is not a certificate: it lacks {wrong}; make one with `regard prove --out`")
    return record


def differences(given: JsonObject, again: JsonObject) -> list[str]:
    """What a repetition found different: hashes and verdicts."""
    hashes = [
        f"the {name} are not those of the certificate (SHA-256 {str(again['hashes'].get(name))[:12]}, "
        f"not {str(value)[:12]})"
        for name, value in given["hashes"].items()
        if again["hashes"].get(name) != value
    ]
    before, after = ({one["claim"]: one["verdict"] for one in some["claims"]} for some in (given, again))
    names = dict.fromkeys([*before, *after])
    missing = "not tested"
    verdicts = [
        f"{name}: {after.get(name, missing)}, but the certificate says: {before.get(name, missing)}"
        for name in names
        if before.get(name) != after.get(name)
    ]
    return hashes + verdicts


def certificate_page(record: JsonObject, source: str) -> str:
    """The certificate as an HTML page."""
    claims, target = record["claims"], str(record["request"].get("target"))
    failed = [one["claim"] for one in claims if one["verdict"] == "fails"]
    held = sum(one["verdict"] == "holds" for one in claims)
    verdict = f"{held} of {len(claims)} claims hold; {', '.join(failed) or 'none'} fail{'s' * (len(failed) < 2)}."
    rows = [(f"{one['claim']}: {one['statement']}", one["verdict"], one["evidence"]) for one in claims]
    settings = {**record["request"], "effort": record["effort"], "seed": record["seed"]}
    parts = [
        heading(f"Certificate: {target}", str(record["about"])),
        paragraphs([verdict]),
        section("Claims", "", table(("claim", "verdict", "evidence"), rows, left=3)),
        section("Request", f"Check it again with: regard prove --check {source}", key_values(_texts(settings.items()))),
        section("SHA-256", "", key_values(_texts(record["hashes"].items()))),
        section("Made by", "", key_values(_texts(record["made_by"].items()))),
    ]
    return page(f"Certificate: {target}", parts, source)


def _texts(items: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in items if value is not None]
