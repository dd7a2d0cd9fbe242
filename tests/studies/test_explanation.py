"""The study of explanations: ranks and correlations, removal of a token, explanations of known models, the words."""

import pytest
import scipy.stats
import torch

from regard.measure.interval import Mean
from regard.models import GPTConfig
from regard.models.gpt import GPT
from regard.studies import explanation
from regard.studies.explanation import GRADIENT, MEAN, NEARNESS, REPLACING, ROLLOUT, Agreement


def gpt(**options) -> GPT:
    torch.manual_seed(1)
    model = GPTConfig(
        **{"vocabulary": 11, "context": 12, "width": 16, "heads": 2, "layers": 2, "zero_init": False, **options}
    ).build()
    assert isinstance(model, GPT)
    with torch.no_grad():  # random models with a visible attention
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    return model


def tokens(rows: int = 3) -> torch.Tensor:
    return torch.randint(11, (rows, 12), generator=torch.Generator().manual_seed(1))


def test_spearman_is_scipys_with_and_without_ties():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(5, 20, generator=generator), torch.randn(5, 20, generator=generator)
    for one, other in ((a, b), (a.round(), b.round()), (a, a.exp())):
        expected = [scipy.stats.spearmanr(x, y)[0] for x, y in zip(one, other, strict=True)]
        assert explanation.spearman(one, other).tolist() == pytest.approx(expected, abs=1e-6)
    assert explanation.spearman(torch.ones(3), a[0, :3]).item() == 0


def test_the_partial_correlation_ignores_what_follows_from_the_nearness():
    near = torch.arange(16.0)
    noise = torch.randn(400, 16, generator=torch.Generator().manual_seed(1))
    effects, weights = near + 3 * noise, near + 3 * noise.flip(0)  # related by the nearness alone
    found = explanation.agreement(weights, effects, weights)
    assert Mean.of(found.correlation).value > 0.4
    assert abs(Mean.of(found.partial).value) < 0.1
    same = explanation.agreement(effects, effects, -effects)
    assert same.partial == pytest.approx([1.0] * 400)
    assert same.first == [1.0] * 400
    assert same.replaced == pytest.approx([-1.0] * 400)


def test_removing_a_token_is_a_prediction_without_it():
    """In a model without positions, the same as leaving the token out of the text."""
    model, text = gpt(position="none"), tokens()
    effects = explanation.removal_effects(model, text)
    assert effects.shape == (3, 11)
    whole = model(text[:1])[0, -1].softmax(-1)
    for place in (0, 5, 10):
        left = torch.cat((text[:1, :place], text[:1, place + 1 :]), 1)
        expected = (model(left)[0, -1].softmax(-1) - whole).abs().sum() / 2
        assert effects[0, place].item() == pytest.approx(expected.item(), abs=1e-5)
    assert effects[0].max() > 1e-3


def test_replacing_a_token_is_a_prediction_with_another(monkeypatch):
    monkeypatch.setattr(explanation, "DRAWS", 1)
    model, text = gpt(), tokens(1)
    effects = explanation.replacement_effects(model, text, 1)
    whole = model(text)[0, -1].softmax(-1)
    for place in (0, 10):
        others = text.repeat(11, 1)
        others[:, place] = torch.arange(11)
        possible = (model(others)[:, -1].softmax(-1) - whole).abs().sum(-1) / 2
        assert (possible - effects[0, place]).abs().min() < 1e-5
    assert effects.max() > 1e-3
    assert torch.equal(effects, explanation.replacement_effects(model, text, 1))


def test_every_explanation_is_of_the_last_prediction():
    model, text = gpt(), tokens()
    found = explanation.explanations(model, text)
    assert list(found) == [
        "1.1",
        "1.2",
        "2.1",
        "2.2",
        "mean of layer 1",
        "mean of layer 2",
        *((MEAN, ROLLOUT, GRADIENT, NEARNESS)),
    ]
    assert all(one.shape == (3, 11) for one in found.values())
    assert torch.allclose(found["mean of layer 1"], (found["1.1"] + found["1.2"]) / 2)
    assert torch.allclose(found[MEAN], (found["mean of layer 1"] + found["mean of layer 2"]) / 2)
    assert all((found[name].sum(-1) < 1).all() for name in ("1.1", MEAN, ROLLOUT))  # the rest is the last token's own


def test_gradient_times_input_is_the_slope_along_the_embedding():
    model, text = gpt().double(), tokens(1)
    found = explanation.gradient_times_input(model, text)
    chosen = model(text)[0, -1].argmax()

    def moved(by: float) -> float:
        x = model.embed(text).detach()
        x[0, 4] *= 1 + by
        with model.embed.register_forward_hook(lambda *_: x), torch.no_grad():
            return model.head(model.features(text))[0, -1].log_softmax(-1)[chosen].item()

    assert found[0, 4].item() == pytest.approx(abs(moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


def test_the_words_compare_with_the_nearness_and_the_gradient():
    def of(value: float) -> Agreement:
        return Agreement([value, value, value + 0.01], [0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [1.0, 0.0, 1.0])

    model = {
        "1.1": of(0.1),
        "1.2": of(0.6),
        MEAN: of(0.3),
        ROLLOUT: of(0.52),
        GRADIENT: of(0.7),
        NEARNESS: of(0.5),
        REPLACING: of(0.9),
    }
    said = " ".join(explanation.words(model, [model]))
    assert "Single heads: from 0.103 to 0.603, some above the mean of all heads." in said
    assert "The mean of all heads ranks tokens worse than their nearness alone and worse than gradient × input" in said
    assert "The rollout ranks tokens about as well as their nearness alone" in said
    assert "replacing a token by another: mean of all heads 0.200 ± 0.000" in said
    assert "The two effects agree by 0.903 ±" in said
    assert "over 3 targets of 1 models" in said


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(explanation, "SEEDS", 1)
    found = explanation.study(0.02, 1, lambda line: None).numbers["by_seed"]
    assert [len(one[MEAN]["correlation"]) for one in found] == [4]
