"""Significance tests that draw few samples, because the usual 10,000 take a minute."""

from sacrebleu.significance import PairedTest

SAMPLES = {"bs": 100, "ar": 200}


def draw_few_samples(monkeypatch):
    for test, samples in SAMPLES.items():
        monkeypatch.setitem(PairedTest._DEFAULT_SAMPLES, test, samples)
