"""The paper's policies at printed and published constants."""

import pytest

import fclub
from fclub.errors import InvalidSetting, UnknownName
from fclub.experiments.run.experiment import policy_setting
from fclub.policies.presets import PAPER, PRESETS, split_preset


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", PAPER)
def test_every_policy_of_the_paper_has_every_preset(name: str, preset: str) -> None:
    policy = fclub.make_policy(f"{name}@{preset}")
    set_to = {key: value for key, value in PRESETS[preset].items() if key in policy.get_params()}
    assert policy.name == name
    assert set_to.items() <= policy.get_params().items()
    assert policy.get_params() != fclub.make_policy(name).get_params()


def test_what_is_given_goes_before_the_preset() -> None:
    assert fclub.make_policy("fclub-dc@printed", exploration=0.5).get_params()["exploration"] == 0.5
    setting = policy_setting("cdp-fclub-dc@printed", 200_000, {"epsilon": 2.0, "alpha": 0.2})
    assert setting.name == "cdp-fclub-dc"
    assert setting.parameters["exploration"] == 1.0
    assert setting.parameters["epsilon"] == 2.0
    assert setting.parameters["horizon"] == 200_000


def test_only_the_papers_policies_have_presets() -> None:
    with pytest.raises(InvalidSetting, match="linucb@printed"):
        split_preset("linucb@printed")
    with pytest.raises(UnknownName, match="tuned"):
        split_preset("fclub-dc@tuned")


def test_the_published_scale_of_beta_changes_choices() -> None:
    runs = [
        fclub.simulate(name, "synthetic", rounds=400, seed=3)
        for name in ("fclub-dc", "fclub-dc@printed", "fclub-dc@published")
    ]
    assert len({run.regret[-1] for run in runs}) == 3
