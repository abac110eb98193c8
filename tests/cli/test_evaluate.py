"""`keras-transformer evaluate`."""

import json

from support.command_line import succeeds


def test_scores_are_shown_and_appended_to_the_run(run):
    shown = succeeds("evaluate", run, "--split", "validation", "--length-penalty", 0)
    bleu, chrf = json.loads((run / "scores.json").read_text())
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["split"] == "validation"
    assert (bleu["beam_size"], bleu["length_penalty"]) == (2, 0)
    assert f"BLEU\t{bleu['score']:.2f}\t{bleu['signature']}" in shown
