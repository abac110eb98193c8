"""`keras-transformer budget`."""

from support.command_line import succeeds

from keras_transformer.training import token_budget


def test_every_try_is_a_line_and_the_last_line_names_the_setting(recipe, data, monkeypatch):
    def find(loaded, limit, report):
        assert loaded.name == "digits"
        assert limit == 512
        report(token_budget.Try(2048, (128, 32, 16)))
        best = token_budget.Try(1024, (64, 32, 16), 300.0, 0.5, 2048.0)
        report(best)
        return best

    monkeypatch.setattr(token_budget, "find_token_budget", find)
    shown = succeeds("budget", recipe, "--memory", 0.5, "--set", f"data.directory={data}")
    header, too_much, fits, last = shown.splitlines()
    assert header.split()[0] == "tokens"
    assert too_much.split() == "2,048 128 x 32 x 16 too much".split()
    assert fits.split() == "1,024 64 x 32 x 16 300 0.50 2,048".split()
    assert last == "largest that fits into 512 MiB: --set training.tokens_per_batch=1024"
