"""The validation loss rises while the training loss falls."""

import statistics

from regard.doctor import Check, Findings, History
from regard.doctor.check import DEFINITIONS
from regard.doctor.context import RECENT

#: Nats of the validation loss above its lowest value while the training loss kept falling, and between the two losses.
RISEN, GAP = 0.1, 0.3
#: Faults of the data that make the validation part unlike the training part.
DATA = ("input_fault", "label_fault", "class_order", "pair_fault", "truncation")


class Overfitting(Check):
    kind, description = "overfitting", "the model memorizes the training text"
    follows = (DEFINITIONS, "mask_fault", "data_fault", *DATA)

    def on_evaluation(self, history: History) -> Findings:
        if not history.validation:
            return
        at, lowest = min(history.validation, key=lambda pair: pair[1])
        step, now = history.validation[-1]
        around, recent = ([one.loss for one in history.steps if one.step <= end][-RECENT:] for end in (at, step))
        if not around or not recent or step == at:
            return
        then, trained = statistics.median(around), statistics.median(recent)
        if now < lowest + RISEN or trained > then or now - trained < GAP:
            return
        evidence = (
            f"validation loss {now:.3f}, at step {at:,} {lowest:.3f}; training loss {trained:.3f}, then {then:.3f}"
        )
        cause = "too little text, or too many steps"
        dropout = min(0.5, round(self.run.settings["model"].get("dropout", 0.0) + 0.1, 2))
        yield self.finding("", evidence, cause, f"--train.steps {at}", f"--model.dropout {dropout}", "more text")

    on_history = on_evaluation
