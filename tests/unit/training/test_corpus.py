"""What is held out is never trained on."""

from training.corpus import Document, docstrings, is_held_out, prose_of, without_duplicates

SOURCE = '''"""The module says what it is for, in more than forty characters."""


def f():
    """Docstring of f, which is also longer than forty characters."""
'''


def test_a_text_in_both_splits_is_only_held_out() -> None:
    kept = without_duplicates(
        [
            Document("prose", "a", False, "same  text\n"),
            Document("prose", "b", True, "same text"),
            Document("code", "c", False, "x"),
        ]
    )
    assert [(d.name, d.held_out) for d in kept] == [("b", True), ("c", False)]


def test_docstrings_follow_the_split_of_their_file() -> None:
    names = [f"package/module_{n}.py" for n in range(64)]
    assert 0 < sum(map(is_held_out, names)) < 16
    for name in names:
        assert {d.held_out for d in prose_of(name, SOURCE)} == {is_held_out(name)}


def test_docstrings_come_in_the_order_of_the_file() -> None:
    assert [text.split()[0] for text in docstrings(SOURCE)] == ["The", "Docstring"]
