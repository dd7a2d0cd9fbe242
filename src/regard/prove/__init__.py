"""Certificates: claims about what a model computes, each tested and shown with evidence."""

from regard.prove.certify import certify
from regard.prove.model_under_test import ModelUnderTest
from regard.prove.registry import (
    Case,
    Certificate,
    ClaimFails,
    ClaimResult,
    ClaimSweep,
    all_claims,
    claim,
    fails,
    holds,
    not_applicable,
)
