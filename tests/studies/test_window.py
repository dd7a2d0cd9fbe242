"""The study of windows: the receptive field is a bound, accuracy is by distance, and the words follow."""

import pytest
import torch

from regard.studies import window
from regard.studies.window import EVERYTHING, SIZE, Reached


@pytest.mark.parametrize("size", [(3, 1), (3, 3), (5, 2)])
def test_no_token_beyond_the_receptive_field_changes_a_prediction(size):
    torch.manual_seed(1)
    config = window.model_config(size, 11, 16)
    model = type(config)(**{**vars(config), "zero_init": False}).build()
    bound, tokens = window.reach(size, {1: 1.0}).bound, torch.arange(16)[None] % 11

    def changed(distance: int) -> bool:
        other = tokens.clone()
        other[0, 15 - distance] = 10 - other[0, 15 - distance]
        return not torch.equal(model(tokens)[:, -1], model(other)[:, -1])

    assert [changed(distance) for distance in (bound, bound + 1)] == [True, False]


def test_accuracy_is_by_the_distance_of_the_digit():
    data = window.NEEDLE.build(SIZE + 8)

    letters = data.tokenizer.encode("a0123456789").tolist()

    class Near(torch.nn.Module):
        """Names the digit if it is at most 7 tokens before the last one, and else "a"."""

        def features(self, tokens):
            out = torch.zeros(*tokens.shape, data.tokenizer.size)
            digit = (tokens[:, :, None] == torch.tensor(letters[1:])).any(-1)
            for row, places in enumerate(digit):
                place = int(places.nonzero()[0])
                near = tokens.shape[1] - 1 - place <= 7
                out[row, -1, tokens[row, place] if near else letters[0]] = 1
            return out

        def head(self, features):
            return features

    found = window.accuracy(Near(), data)  # type: ignore[arg-type]
    assert list(found) == list(range(1, SIZE + 2))
    assert list(found.values()) == [1.0] * 7 + [0.0] * (SIZE - 6)


def test_the_reach_ends_at_the_first_distance_that_is_not_found():
    found = {1: 1.0, 2: 0.9, 3: 0.4, 4: 0.6, 5: 0.1}
    assert window.reach((3, 2), found) == pytest.approx(Reached(4, 0.725, 0.1, 2))
    assert window.reach((9, 2), {1: 0.2}) == Reached(16, 0.2, window.CHANCE, 0)


def test_the_words_follow_from_accuracies_and_losses():
    reached = {(9, 1): Reached(8, 1.0, 0.11, 8), (5, 2): Reached(8, 0.7, 0.1, 6)}
    losses = {(4, 1): 2.5, (16, 1): 2.31, (EVERYTHING, 1): 2.3}
    said = " ".join(window.words(reached, losses))
    assert "the highest mean accuracy is 11% (window 9, 1 layer)" in said
    assert "No model finds a needle there." in said
    assert "field by fewer or more layers: 8: window 9, 1 layer 100%, window 5, 2 layers 70%" in said
    assert "window 4 +0.200, window 16 +0.010; within 0.02 from window 16 on" in said
    against = " ".join(window.words({(9, 1): Reached(8, 1.0, 0.4, 8)}, losses))
    assert "more than guessing, against the bound" in against


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    for name, value in {"WINDOWS": (5,), "LAYERS": (1, 2), "TEXT_WINDOWS": (4,)}.items():
        monkeypatch.setattr(window, name, value)
    found = window.study(0.01, 1, lambda line: None).numbers
    assert len(found["reach"]) == 2
    assert len(found["losses"]) == 4
