"""``dpvd reproduce``."""

from tests.cli.program import assert_refused, call


def test_the_noise_figure_needs_no_run(tmp_path) -> None:
    done = call("reproduce", "fig3", "--quick", "--out", tmp_path, "--json")
    assert done.code == 0, done
    assert (done.json["run"], done.json["records"]) == (0, 0)
    assert done.json["page"] == str(tmp_path / "reproduction.html")
    assert done.json["verdicts"]["not reproduced"] == 1  # a published σ that does not keep its ε
    assert (tmp_path / "figures" / "fig3.png").is_file()
    assert (tmp_path / "tables" / "claims.tex").is_file()


def test_drawing_only_runs_nothing(tmp_path) -> None:
    done = call(
        "reproduce", "table1", "--quick", "--dataset", "digits", "--draw-only", "--out", tmp_path
    )
    assert done.code == 0, done
    assert "0 specs run, 0 records in all" in done.out
    assert not (tmp_path / "records").exists()


def test_bad_options_are_refused(tmp_path) -> None:
    assert_refused(call("reproduce", "--quick", "--full", "--out", tmp_path), "--quick", "--full")
    assert_refused(
        call("reproduce", "--dataset", "cats", "--out", tmp_path),
        "--dataset must",
        "digits, mnist",
        "cats",
    )
    assert_refused(
        call("reproduce", "fig9", "--out", tmp_path), "'experiment': 'fig9' is not one of 'table1'"
    )
    assert_refused(call("reproduce", "fig3", "--jobs", 0, "--out", tmp_path), "--jobs must")
    assert list(tmp_path.iterdir()) == []
