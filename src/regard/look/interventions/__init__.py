"""Interventions: ablation, activation patching, logit lens."""
