"""Files that take the place of others whole, or not at all."""

import pytest

from refopt.checks.files import replaced


def test_a_file_takes_the_place_of_another(tmp_path):
    """Behind a link, with its permissions; until then the old one is there."""
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    with replaced(link) as file:
        file.write(b"new")
        assert old.read_text() == "old"
    assert link.is_symlink() and old.read_text() == "new" and old.stat().st_mode & 0o777 == 0o640
    with replaced(tmp_path / "another") as file:
        file.write(b"another")
    assert {each.name for each in tmp_path.iterdir()} == {"old", "link", "another"}


class Full(Exception):
    """The disk is full."""


def interrupted(path):
    with replaced(path) as file:
        file.write(b"new")
        raise Full


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    place = tmp_path / "old"
    place.write_text("old")
    for at in (place, tmp_path / "new"):
        with pytest.raises(Full):
            interrupted(at)
    assert [each.name for each in tmp_path.iterdir()] == ["old"] and place.read_text() == "old"
