"""A loss that is not finite stops the run before the update, and says where it came from."""

from typing import Any

import pytest
import torch
from train_kit import experiment, newest, same, start

from regard.train import Diverged, Observer, train


def _not_a_number(module: Any, inputs: Any, output: Any) -> Any:
    return output * torch.nan


def _overflow(module: Any, inputs: Any, outputs: Any) -> Any:
    return tuple(gradient * torch.inf for gradient in inputs)


class Break(Observer):
    """After step `at`, makes one module's output NaN from then on, as an overflow would."""

    def __init__(self, at: int, module: str, backward: bool = False):
        self.at, self.module, self.backward = at, module, backward

    def started(self, start):
        self.model = start.model

    def stepped(self, step):
        if step.step == self.at:
            self.before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            module = self.model.get_submodule(self.module)
            if self.backward:
                module.register_full_backward_hook(_overflow)
            else:
                module.register_forward_hook(_not_a_number)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_names_step_position_and_first_module_and_changes_nothing(text, tmp_path, accumulate):
    wanted = experiment(text, accumulate=accumulate)
    run = start(tmp_path, wanted)
    breaker = Break(6, "blocks.1.feedforward.up")
    with pytest.raises(Diverged) as caught:
        train(wanted, run, [breaker])
    error = caught.value
    assert (error.step, error.position) == (7, 6 * accumulate)
    assert error.module == "blocks.1.feedforward.up"
    for part in ("step 7", f"data position {6 * accumulate}", "blocks.1.feedforward.up", "--train.optimizer.lr"):
        assert part in str(error)
    assert all(torch.equal(p, breaker.before[name]) for name, p in breaker.model.named_parameters())
    assert newest(run).step == 4
    assert [r["step"] for r in run.metrics() if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_a_broken_weight_is_found_through_the_module_that_uses_it(text, tmp_path):
    class Poison(Break):
        def stepped(self, step):
            if step.step == self.at:
                with torch.no_grad():
                    self.model.get_parameter("blocks.0.attention.out.weight")[0, 0] = torch.inf

    wanted = experiment(text)
    with pytest.raises(Diverged) as caught:
        train(wanted, start(tmp_path, wanted), [Poison(2, "")])
    assert caught.value.module == "blocks.0.attention.out"


def test_the_search_sees_the_same_dropout(text, tmp_path):
    """A number that goes wrong for one dropout mask only is still found."""

    class Unlucky(Break):
        def stepped(self, step):
            if step.step == self.at:
                drawn = []

                def fail(module: Any, inputs: Any, output: Any) -> Any:
                    drawn.append(torch.rand(()).item())
                    return output * torch.nan if drawn[-1] == drawn[0] else output

                self.model.get_submodule(self.module).register_forward_hook(fail)

    wanted = experiment(text)
    with pytest.raises(Diverged) as caught:
        train(wanted, start(tmp_path, wanted), [Unlucky(3, "blocks.1.norm_attention")])
    assert caught.value.module == "blocks.1.norm_attention"


def test_a_gradient_that_is_not_finite_stops_too(text, tmp_path):
    wanted = experiment(text, model={"dropout": 0.0})
    run = start(tmp_path, wanted)
    breaker = Break(5, "blocks.1.attention.out", backward=True)
    with pytest.raises(Diverged, match=r"gradient's norm.*first in"):
        train(wanted, run, [breaker])
    assert all(torch.equal(p, breaker.before[name]) for name, p in breaker.model.named_parameters())
    assert newest(run).step == 4


def test_the_run_can_be_taken_up_again_afterwards(text, tmp_path):
    wanted = experiment(text)
    whole = start(tmp_path, wanted, "whole")
    train(wanted, whole)
    run = start(tmp_path, wanted)
    with pytest.raises(Diverged):
        train(wanted, run, [Break(6, "norm")])
    train(wanted, run, resume=True)
    assert same(newest(run).model(), newest(whole).model())
