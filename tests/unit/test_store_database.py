"""The database's schema and the steps to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine

from gateway.store.database import FILE, MIGRATIONS, StoreError, migrate
from gateway.store.tables import metadata


def test_steps_lead_to_the_schema_that_the_code_uses(tmp_path: Path):
    migrate(tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path / FILE}", poolclass=NullPool)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    with sqlite3.connect(tmp_path / FILE) as raw:
        tables = {name for (name,) in raw.execute("select name from sqlite_master where type = 'table'")}
    raw.close()
    assert tables == {*metadata.tables, "alembic_version"}


def test_steps_are_one_line_without_branches():
    assert len(ScriptDirectory(str(MIGRATIONS)).get_heads()) == 1


def test_second_start_changes_nothing(tmp_path: Path):
    migrate(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    migrate(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_folder_with_odd_characters_is_made(tmp_path: Path):
    folder = tmp_path / "a%20b %(here)s" / "deep"
    migrate(folder)
    assert (folder / FILE).exists()


def test_newer_database_is_left_alone(tmp_path: Path):
    migrate(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as raw:
        raw.execute("update alembic_version set version_num = '9999'")
    raw.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        migrate(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_file_that_is_no_database_is_one_sentence(tmp_path: Path):
    (tmp_path / FILE).write_text("profiles: []\n" * 100)
    with pytest.raises(StoreError, match="not a database") as caught:
        migrate(tmp_path)
    assert "\n" not in str(caught.value)


def test_half_of_a_step_is_nothing_of_it(tmp_path: Path):
    with sqlite3.connect(tmp_path / FILE) as raw:
        raw.execute("create table enrolment_tokens (x)")
    raw.close()
    with pytest.raises(StoreError, match="already exists"):
        migrate(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as raw:
        tables = {name for (name,) in raw.execute("select name from sqlite_master where type = 'table'")}
    raw.close()
    assert tables == {"enrolment_tokens"}


def test_place_that_is_a_file_is_one_sentence(tmp_path: Path):
    (tmp_path / "state").write_text("")
    with pytest.raises(StoreError):
        migrate(tmp_path / "state")
