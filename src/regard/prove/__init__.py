"""Certificates: what a model claims, judged by what it computes."""

from regard.prove.certify import CLAIMS, certify
from regard.prove.verdict import Certificate, Verdict

__all__ = ["CLAIMS", "Certificate", "Verdict", "certify"]
