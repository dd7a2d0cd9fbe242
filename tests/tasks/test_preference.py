"""Direct preference optimization against the paper: the loss at the start, its gradient, and what it does."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import PreferenceBatch
from regard.models import GPTConfig
from regard.tasks import PreferenceTask, PreferenceTaskConfig
from regard.tasks.preference import log_probabilities

LIMIT = 2**27


def model(seed: int = 0):
    torch.manual_seed(seed)
    return GPTConfig(vocabulary=13, context=12, layers=2, heads=2, width=16, zero_init=False).build().double()


def batch(seed: int, pairs: int, filled: int = 0) -> PreferenceBatch:
    """Answers of different lengths after prompts of two tokens; the last ``filled`` pairs are none."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(13, (2 * pairs, 10), generator=generator)
    lengths = torch.randint(1, 8, (2 * pairs,), generator=generator)
    place = torch.arange(9)
    counted = (place >= 1) & (place < 1 + lengths[:, None])
    targets = torch.where(counted, tokens[:, 1:], -1)
    targets[2 * (pairs - filled) :] = -1
    return PreferenceBatch(tokens[:, :-1], targets, torch.zeros(2 * pairs, dtype=torch.float64))


def referenced(policy, given: PreferenceBatch) -> PreferenceBatch:
    with torch.no_grad():
        return given._replace(reference=log_probabilities(policy, given, LIMIT))


def brute_force(policy, given: PreferenceBatch) -> torch.Tensor:
    """log π(y|x), one token at a time."""
    found = []
    for row, targets in zip(given.inputs, given.targets, strict=True):
        logs = policy(row[None])[0].log_softmax(-1)
        found.append(sum(logs[at, token] for at, token in enumerate(targets.tolist()) if token >= 0) + 0 * logs.sum())
    return torch.stack(found)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 999), pairs=st.integers(1, 4), beta=st.floats(0.01, 2))
def test_the_loss_of_the_reference_itself_is_log_2(seed: int, pairs: int, beta: float) -> None:
    policy, task = model(), PreferenceTask(PreferenceTaskConfig(beta=beta))
    term = task.terms(policy, referenced(policy, batch(seed, pairs)))["preference"]
    assert int(term.count) == pairs
    assert math.isclose(float(term.total.detach()), pairs * math.log(2), rel_tol=1e-12)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 999), pairs=st.integers(1, 4), limit=st.sampled_from([40, LIMIT]))
def test_loss_and_gradient_are_those_of_the_paper(seed: int, pairs: int, limit: int) -> None:
    """∇L = -β σ(r_l - r_w) [∇ log π(y_w|x) - ∇ log π(y_l|x)], section 4; here in float64, from single tokens."""
    reference, policy, beta = model(1), model(2), 0.7
    given_ = referenced(reference, batch(seed, pairs))
    task = PreferenceTask(PreferenceTaskConfig(beta=beta, logits=limit))
    term = task.terms(policy, given_)["preference"]
    term.total.backward()
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    policy.zero_grad()
    logs = brute_force(policy, given_)
    rewards = beta * (logs - given_.reference).detach()
    chosen, rejected = rewards[0::2], rewards[1::2]
    assert math.isclose(float(term.total.detach()), float(-torch.sigmoid(chosen - rejected).log().sum()), rel_tol=1e-9)
    weight = beta * torch.sigmoid(rejected - chosen)
    (-(weight * (logs[0::2] - logs[1::2])).sum()).backward()
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-7, atol=1e-9)


def test_pairs_that_fill_up_a_batch_do_not_count() -> None:
    policy, reference, task = model(1), model(2), PreferenceTask()
    full = referenced(reference, batch(3, 4))
    part = PreferenceBatch(*(tensor[:6] for tensor in full))
    filled = full._replace(targets=torch.cat((full.targets[:6], torch.full_like(full.targets[6:], -1))))
    assert int(task.counts(filled)["preference"]) == int(task.counts(part)["preference"]) == 3
    torch.testing.assert_close(*(task.terms(policy, one)["preference"].total for one in (filled, part)))
    sums = [task.measured(policy, one)[1] for one in (filled, part)]
    torch.testing.assert_close(*sums)


def test_the_margin_rises() -> None:
    """Some steps of gradient descent: preferred answers become likelier against the reference, rejected ones less."""
    policy, task = model(), PreferenceTask()
    given_ = referenced(policy, batch(5, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        terms, _ = task.measured(policy, given_)
        terms["preference"].total.backward()
        optimizer.step()
    terms, sums = task.measured(policy, given_)
    measures = task.metrics(sums.double())
    assert float(terms["preference"].total.detach()) < 4 * math.log(2)
    assert measures["accuracy"] == 1.0
    assert measures["margin"] > 0.1
