"""The corrections that each system ships: its own default first, and nothing twice."""

from dataclasses import replace

from rlcorr.presets import PRESETS
from rlcorr.systems.export import SYSTEMS, export
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.shipped import shipped


def test_a_system_ships_its_presets_with_their_numbers() -> None:
    verl = [one.preset for one in shipped("verl")]
    assert verl[:4] == ["disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop"]
    assert "bypass_pg_is" not in verl  # its weights are those of decoupled_seq_is
    assert "verl_dppo_tv" not in verl  # a loss, which the text of the correction cannot name
    assert next(one.preset for one in shipped("TRL")) == "trl_sequence_mask"  # TRL's own default
    assert [one.preset for one in shipped("miles")][1:] == ["slime_tis", "slime_mis", "slime_opsm"]


def test_the_default_is_first_and_every_row_can_be_exported() -> None:
    for system in SYSTEMS:
        first, *others = shipped(system)
        assert (first.is_default, first.config) == (True, FACTS[system].correction), system
        assert not any(one.is_default for one in others), system
        for one in others:
            assert one.preset is not None, system
            assert one.config == PRESETS[one.preset].config, (system, one.preset)
            assert export(one.config, system, one.loss).strip(), (system, one.preset)
        effects = [replace(one.config, bypass_mode=False, loss_type="ppo_clip") for one in (first, *others)]
        assert len({repr(effect) for effect in effects}) == len(effects), system
