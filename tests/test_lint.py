"""`interlock lint` judges the statements of files: place, code, rewrite, summary, exit status."""

import pytest

from support.router import run_interlock


@pytest.fixture(scope="module")
def lint(module_cluster):
    catalog = module_cluster.catalog.conninfo("app", "interlock_router")

    def run(*arguments, **options):
        return run_interlock("lint", "--catalog", catalog, *arguments, **options)
    return run


def test_a_file_of_routable_statements_passes(lint, tmp_path):
    file = tmp_path / "good.sql"
    file.write_text(
        "\\set ON_ERROR_STOP on\n"
        "BEGIN;\n"
        "UPDATE account SET balance = balance - $1 WHERE account_id = $2; -- one; comment\n"
        "SELECT * FROM account WHERE account_id = $1 FOR UPDATE;\n"
        "COMMIT;\n"
        "\\q\n")
    done = lint(file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "4 statements: 4 accepted, 0 refused\n"


def test_each_refusal_has_its_place_its_code_and_a_summary(lint, tmp_path):
    file = tmp_path / "bad.sql"
    file.write_text(
        "SELECT 1;\n"
        "\n"
        "SELECT 'ü'\n"
        "  FROM account;\n"
        "DROP TABLE account; SELECT nextval('s');\n"
        "this is no statement;\n"
        "SELECT * FROM account WHERE account_id = 5\n")
    done = lint(file)
    assert done.returncode == 1
    refused = [line for line in done.stdout.splitlines() if line.startswith(str(file))]
    assert [line.split(": ")[0] for line in refused] == [f"{file}:4:8", f"{file}:5:1", f"{file}:5:28", f"{file}:6:1"]
    assert [line.split(": ")[1].split()[0] for line in refused] == ["R10", "R24", "R25", "R01"]
    assert "HINT:  Add account.account_id = <value>" in done.stdout
    assert "      FROM account\n           ^\n" in done.stdout
    assert done.stdout.splitlines()[-5:] == ["6 statements: 2 accepted, 4 refused", "    R01  1", "    R10  1",
                                             "    R24  1", "    R25  1"]


def test_a_literal_of_another_type_and_keys_of_two_shards_are_found(lint, tmp_path):
    file = tmp_path / "values.sql"
    file.write_text("SELECT * FROM account WHERE account_id = 'abc';\n"
                    "SELECT * FROM account WHERE account_id IN (1,2,3,4,5,6,7,8);\n"
                    "SELECT * FROM account WHERE account_id = ANY ($1);\n")
    done = lint("--quiet", file)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["3 statements: 1 accepted, 2 refused", "    R11  1", "    R27  1"]


def test_set_search_path_counts_for_what_follows(lint):
    done = lint("-", input="SET search_path = other;\nSELECT * FROM account WHERE account_id = 1;\n"
                           "SET search_path = \"other\", 'public';\nSELECT * FROM account WHERE account_id = 1;\n"
                           "RESET search_path; SELECT * FROM account WHERE account_id = 1")
    assert done.returncode == 1
    assert "-:2:15: R26" in done.stdout and done.stdout.count("R26 (") == 1


def test_several_files_have_one_summary(lint, tmp_path):
    for name in ("a.sql", "b.sql"):
        (tmp_path / name).write_text("SELECT * FROM account")
    done = lint(tmp_path / "a.sql", tmp_path / "b.sql")
    assert done.stdout.splitlines()[-2:] == ["2 statements: 0 accepted, 2 refused", "    R10  2"]


def test_a_wrong_command_line_or_file_is_told(lint, tmp_path):
    assert lint().returncode == 2
    assert lint("--nonsense", "x").returncode == 2
    missing = lint(tmp_path / "missing.sql")
    assert missing.returncode == 1 and "missing.sql" in missing.stderr
