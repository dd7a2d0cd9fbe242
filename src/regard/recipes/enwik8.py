"""The first 100 MB of Wikipedia, byte by byte."""

from regard.data import BytesConfig, TextConfig
from regard.models import GPTConfig
from regard.train import Experiment, MuonConfig, TrainConfig, TrapezoidScheduleConfig


def recipe() -> Experiment:
    """A 12-layer byte model of enwik8 (90M/5M/5M bytes), for one GPU.

    regard train enwik8

    Eight minutes on an H200. Rotary positions, RMSNorm, normalized queries and keys, squared ReLU and embeddings of
    byte pairs; Muon for the matrices, AdamW for the rest. 1.088 bits per byte on the test part, each byte predicted
    from at least 896 others: regard evaluate --part test --stride 128
    """
    return Experiment(
        model=GPTConfig(
            context=1024,
            layers=12,
            heads=8,
            width=512,
            cap=15.0,
            ngrams=2,
            buckets=2**17,  # room for every pair of bytes
            dropout=0.1,
            attention_dropout=0.0,
        ),
        data=TextConfig(source="enwik8", tokenizer=BytesConfig(), validation=0.05, test=0.05, batch=48),
        train=TrainConfig(
            steps=7500,
            optimizer=MuonConfig(),
            schedule=TrapezoidScheduleConfig(warmup=0.02, decay=0.7),
            evaluate_every=4000,
            save_every=4000,
        ),
    )
