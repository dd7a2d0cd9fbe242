"""A second list of held-out faults and sound models, by another independent author."""

from __future__ import annotations

import pytest
import second_held_out_data
import second_held_out_masks
import second_held_out_rows
import second_held_out_states
import second_sound_attention
import second_sound_depth
import second_sound_states

from regard.prove import certify

FAULTY = (second_held_out_masks, second_held_out_rows, second_held_out_states, second_held_out_data)
#: Several claims may name a fault; one of them must.
FAULTS = {name: entry for module in FAULTY for name, entry in module.FAULTS.items()}
EFFECTS = {name: effect for module in FAULTY for name, effect in module.EFFECTS.items()}
SOUND = second_sound_attention.SOUND | second_sound_states.SOUND | second_sound_depth.SOUND
#: Faults whose claim takes a moment, and sound models with a claim that takes one.
QUICK = ("rolled_targets", "token_by_token_text", "head_left_out")
QUICK_SOUND = {"huge_scale": "order", "encoder_decoder": "step"}
#: In training its statistics include later tokens; the entry is sound in evaluation alone.
ALARMS = {"running_statistics": ["future"]}


def test_the_lists_are_complete():
    assert (len(FAULTS), len(SOUND)) == (22, 30)
    assert FAULTS.keys() == EFFECTS.keys()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_real(name):
    assert EFFECTS[name]() > 1e-4


@pytest.mark.parametrize("name", QUICK)
def test_a_held_out_fault_fails_its_claim(name):
    make, claim = FAULTS[name]
    assert certify(make(), claims=[claim]).failed == [claim]


@pytest.mark.parametrize("name", QUICK_SOUND)
def test_a_held_out_sound_model_passes_a_claim(name):
    make, _ = SOUND[name]
    (result,) = certify(make(), claims=[QUICK_SOUND[name]]).results
    assert result.verdict == "holds", result.evidence


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_held_out_fault_is_named(name):
    make, claims = FAULTS[name]
    found = certify(make())
    assert set(claims.split()) & set(found.failed), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_every_held_out_sound_model_passes(name):
    make, _ = SOUND[name]
    found = certify(make())
    assert found.failed == ALARMS.get(name, []), str(found)
