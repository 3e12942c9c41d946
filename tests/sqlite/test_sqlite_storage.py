"""The file and its log, as the store tells of them."""

from holdfast import Holdfast


def test_the_size_of_the_file_is_told(app: Holdfast) -> None:
    storage = app.observe.storage()
    assert storage.database_bytes >= storage.page_size > 0
    assert storage.disk_free_bytes > 0


def test_a_checkpoint_moves_the_log_into_the_database(app: Holdfast) -> None:
    app.queue("inbox").send("x")
    pages, moved = app.store.file.checkpoint()
    assert pages == moved > 0
