"""From a config, or the newest checkpoint, to the engine that trains."""

from dataclasses import replace

from regard.config import to_toml
from regard.errors import UserError
from regard.generate.load import check_fit
from regard.parallel.world import World
from regard.runs import Checkpoint, Run
from regard.runs.disk import write_synced
from regard.runs.folder import CHAT, TOKENIZER
from regard.train.adapt import frozen_names
from regard.train.budget import budget_in_steps, kept_until
from regard.train.checkpoint import changed_on, check_data, restore
from regard.train.engine import Engine
from regard.train.experiment import Experiment
from regard.train.guard import make_engine
from regard.train.lanes import with_lanes
from regard.train.pretrained import build_data, pretrained
from regard.train.reference import attach_reference
from regard.train.saving import save


def prepare(experiment: Experiment, run: Run, world: World, began: float, resume: bool) -> Engine:
    """An engine at the step where the run starts or continues; writes the final config and the tokenizer."""
    if experiment.quantization is not None:
        raise UserError(f"{run.path} has quantized weights, which are not trained; resume the run it was made from")
    checkpoint = newest(run, world) if resume else None
    experiment = with_lanes(experiment, world, resumed=checkpoint is not None)
    start = (
        pretrained(experiment.init, experiment.model) if experiment.init is not None and checkpoint is None else None
    )
    if start is not None:
        experiment = replace(experiment, model=start.config, data=experiment.data.with_chat(start.chat))
    data = build_data(experiment, run, start)
    experiment = replace(experiment, task=experiment.task.fit(data))
    experiment = replace(experiment, model=experiment.model_for(data))
    if checkpoint is not None:
        check_data(data, checkpoint)  # first: another text has another vocabulary
        check_fit(run, experiment.model, checkpoint)
    if checkpoint is None or experiment.train.seconds is None:
        experiment = budget_in_steps(experiment, data, world, began)
    else:
        experiment = kept_until(experiment, checkpoint.step)
    engine = make_engine(experiment, data, world, None if start is None else start.weights)
    if checkpoint is not None:
        restore(engine, checkpoint)
    if resume and world.rank == 0:
        run.rewind(engine.progress.step)  # no log records after the checkpoint
    # After restoring: a run that cannot be resumed, for example because its text has changed, is left unchanged.
    if world.rank == 0:
        run.replace_config(to_toml(experiment))
        if data.tokenizer is not None:
            run.add(TOKENIZER, data.tokenizer.save)
        if (chat := data.chat) is not None:
            run.add(CHAT, lambda path: write_synced(path, chat.to_json().encode()))
    attach_reference(engine, run, resume=checkpoint is not None)
    if checkpoint is None and frozen_names(engine.model):
        save(engine, run)
    world.barrier()
    return engine


def newest(run: Run, world: World) -> Checkpoint | None:
    """The newest undamaged checkpoint; None if the run has none at all. The ranks share its verification."""
    checkpoint = run.latest(changed_on(world))
    if checkpoint is None and run.damaged:
        raise UserError(
            f"no checkpoint of {run.path} is whole ({run.damaged[0]}); restore one from a copy, or start a new run"
        )
    return checkpoint
