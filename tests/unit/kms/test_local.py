"""Local key management: keys in a keyring file that only the server may read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantq.errors import Conflict, DecryptionFailed, Invalid, KeyDisabled, KmsUnavailable, NotFound
from tenantq.kms.keyring import KeyringFile, Unlock, parse_keyring
from tenantq.kms.local import LocalKms
from tenantq.kms.settings import LocalSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONTEXT = {"tenantq": "data-key", "tenant": "7", "number": "1"}
MASTER = bytes(range(32))
PHRASE = "correct horse battery staple"
BY_ENV = {"passphrase_env": "PASS"}
CHEAP = 1 << 10  # scrypt's cost, for tests only
NOW = 1_700_000_000_000


def secret_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Write a file with a given mode."""
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.fixture
def ring(tmp_path: Path) -> KeyringFile:
    """Create a keyring with a key ``main``, protected by a master key."""
    ring = KeyringFile(tmp_path / "keyring.json", Unlock("master_key", MASTER))
    ring.create()
    ring.add_key("main", NOW)
    return ring


@pytest.fixture
def given_settings(ring: KeyringFile, tmp_path: Path) -> LocalSettings:
    """Settings of that keyring."""  # noqa: D401  # a noun says it
    master = secret_file(tmp_path / "master", MASTER)
    return LocalSettings(keyring=str(ring.path), master_key_file=str(master))


@pytest.fixture
async def kms(given_settings: LocalSettings) -> AsyncIterator[LocalKms]:
    """Open the key management on that keyring."""
    kms = LocalKms(given_settings)
    yield kms
    await kms.close()


# ---- wrapping ----


async def test_a_wrapped_key_unwraps_only_in_the_same_context(kms: LocalKms, ring: KeyringFile) -> None:
    """Not in another context, not with another key, and not after any byte changed."""
    ring.add_key("other", NOW)
    wrapped = await kms.wrap("main", b"k" * 32, CONTEXT)
    assert b"k" * 8 not in wrapped
    assert await kms.unwrap("main", wrapped, CONTEXT) == b"k" * 32
    for context in ({}, {**CONTEXT, "tenant": "8"}, {**CONTEXT, "more": "x"}):
        with pytest.raises(DecryptionFailed):
            await kms.unwrap("main", wrapped, context)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap("other", wrapped, CONTEXT)
    for at in range(len(wrapped)):
        changed = bytearray(wrapped)
        changed[at] ^= 1
        with pytest.raises((DecryptionFailed, KeyDisabled)):
            await kms.unwrap("main", bytes(changed), CONTEXT)
    for short in (b"", wrapped[:10], wrapped[:-1]):
        with pytest.raises(DecryptionFailed):
            await kms.unwrap("main", short, CONTEXT)


async def test_a_rotated_key_wraps_with_the_new_version_and_unwraps_with_the_old(
    kms: LocalKms, ring: KeyringFile
) -> None:
    """While the server runs: a changed file is read again."""
    old = await kms.wrap("main", b"k" * 32, CONTEXT)
    assert ring.rotate_key("main", NOW) == 2
    new = await kms.wrap("main", b"k" * 32, CONTEXT)
    assert (int.from_bytes(old[1:5]), int.from_bytes(new[1:5])) == (1, 2)
    for wrapped in (old, new):
        assert await kms.unwrap("main", wrapped, CONTEXT) == b"k" * 32


async def test_disabled_removed_and_unknown_keys_are_refused(kms: LocalKms, ring: KeyringFile) -> None:
    """At once. An enabled key works again."""
    wrapped = await kms.wrap("main", b"k" * 32, CONTEXT)
    ring.set_enabled("main", enabled=False)
    for call in (kms.wrap("main", b"k", CONTEXT), kms.unwrap("main", wrapped, CONTEXT)):
        with pytest.raises(KeyDisabled, match="disabled"):
            await call
    ring.set_enabled("main", enabled=True)
    assert await kms.unwrap("main", wrapped, CONTEXT) == b"k" * 32
    ring.remove_key("main")
    with pytest.raises(KeyDisabled, match="no key of this name"):
        await kms.unwrap("main", wrapped, CONTEXT)
    ring.add_key("main", NOW)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap("main", wrapped, CONTEXT)


async def test_a_missing_key_version_is_distinguished_from_damage(kms: LocalKms, ring: KeyringFile) -> None:
    """An old backup of the keyring may have been restored."""
    backup = ring.path.read_bytes()
    ring.rotate_key("main", NOW)
    wrapped = await kms.wrap("main", b"k" * 32, CONTEXT)
    secret_file(ring.path, backup)
    with pytest.raises(KeyDisabled, match="version 2"):
        await kms.unwrap("main", wrapped, CONTEXT)


async def test_a_missing_or_damaged_keyring_is_an_outage(kms: LocalKms, ring: KeyringFile) -> None:
    """Its keys are no longer used. When it is restored, they work again."""
    content = ring.path.read_bytes()
    wrapped = await kms.wrap("main", b"k" * 32, CONTEXT)
    ring.path.unlink()
    with pytest.raises(KmsUnavailable, match="No such file"):
        await kms.unwrap("main", wrapped, CONTEXT)
    secret_file(ring.path, content[:-20])
    with pytest.raises(KmsUnavailable, match="not a keyring"):
        await kms.unwrap("main", wrapped, CONTEXT)
    secret_file(ring.path, content, 0o644)
    with pytest.raises(KmsUnavailable, match="0644"):
        await kms.unwrap("main", wrapped, CONTEXT)
    secret_file(ring.path, content)
    assert await kms.unwrap("main", wrapped, CONTEXT) == b"k" * 32


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "x" * 64, "é"])
def test_an_invalid_key_name_is_refused(kms: LocalKms, name: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(Invalid, match="1 to 63 letters"):
        kms.check_key(name)


# ---- the file ----


def test_the_keyring_has_no_plaintext_key_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """A change leaves no temporary files."""
    made: list[bytes] = []

    def random_bytes(count: int) -> bytes:
        made.append(os.urandom(count))
        return made[-1]

    ring = KeyringFile(tmp_path / "keyring.json", Unlock("master_key", MASTER), random_bytes)
    ring.create()
    ring.add_key("main", NOW)
    ring.rotate_key("main", NOW)
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"keyring.json", "keyring.json.lock"}
    content = ring.path.read_bytes()
    keys = [value for value in made if len(value) == 32]
    assert len(keys) == 2
    document = json.loads(content)
    assert set(document["keys"]["main"]["versions"]) == {"1", "2"}
    for key in [*keys, MASTER]:
        assert key not in content
        assert key.hex() not in content.decode()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o601, 0o700, 0o610])
def test_a_file_accessible_to_others_is_refused(ring: KeyringFile, given_settings: LocalSettings, mode: int) -> None:
    """The keyring and the secret that unlocks it. The error shows the mode and says what to do."""
    assert given_settings.master_key_file is not None
    for path in (ring.path, Path(given_settings.master_key_file)):
        path.chmod(mode)
        with pytest.raises(Invalid, match=rf"{path}: .*{mode:04o}.*chmod 600"):
            LocalKms(given_settings)
        path.chmod(0o600)


def test_a_read_only_file_is_accepted(ring: KeyringFile, given_settings: LocalSettings) -> None:
    """Systems provide credentials that way."""
    ring.path.chmod(0o400)
    assert LocalKms(given_settings)


def test_a_file_of_another_user_is_refused(given_settings: LocalSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could change it."""
    mine = os.stat(given_settings.keyring).st_uid  # noqa: PTH116  # one number of it
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        facts = list(real(descriptor))
        facts[4] = mine + 4_242
        return os.stat_result(facts)

    monkeypatch.setattr("tenantq.kms.secret_file.os.fstat", fstat)
    with pytest.raises(Invalid, match=f"uid {mine + 4_242}"):
        LocalKms(given_settings)


def test_anything_but_a_regular_file_is_refused(given_settings: LocalSettings, tmp_path: Path) -> None:
    """Such as a device or a directory."""
    for path, text in (("/dev/null", "not a regular file"), (str(tmp_path), "directory")):
        with pytest.raises(Invalid, match=text):
            LocalKms(LocalSettings(keyring=path, master_key_file=given_settings.master_key_file))


def test_any_edit_of_the_keyring_is_detected(ring: KeyringFile) -> None:
    """Of its list of keys, their states and their bytes."""
    ring.add_key("other", NOW)
    ring.rotate_key("main", NOW)
    ring.set_enabled("other", enabled=False)
    content = ring.path.read_bytes()
    unlock = Unlock("master_key", MASTER)
    parse_keyring(content, unlock)

    def without_main(document: dict[str, Any]) -> None:
        del document["keys"]["main"]

    def without_newest(document: dict[str, Any]) -> None:
        del document["keys"]["main"]["versions"]["2"]

    def enabled(document: dict[str, Any]) -> None:
        document["keys"]["other"]["enabled"] = True

    def exchanged(document: dict[str, Any]) -> None:
        versions = document["keys"]["main"]["versions"]
        versions["1"], versions["2"] = versions["2"], versions["1"]

    def renamed(document: dict[str, Any]) -> None:
        document["keys"]["third"] = document["keys"].pop("other")

    def unsigned(document: dict[str, Any]) -> None:
        document["mac"] = ""

    for edit in (without_main, without_newest, enabled, exchanged, renamed, unsigned):
        document = json.loads(content)
        edit(document)
        with pytest.raises(Invalid, match="was changed"):
            parse_keyring(json.dumps(document).encode(), unlock)


@given(
    content=st.binary(max_size=200)
    | st.from_regex(r'\{"format":"tenantq-keyring".{0,80}\}', fullmatch=True).map(str.encode)
)
def test_any_content_is_a_keyring_or_invalid(content: bytes) -> None:
    """No other error is raised."""
    with pytest.raises(Invalid):
        parse_keyring(content, Unlock("master_key", MASTER))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    n=st.integers(-(2**40), 2**40),
    r=st.integers(-(2**10), 2**40),
    p=st.integers(-(2**10), 2**40),
    salt=st.integers(0, 15),
)
def test_scrypt_parameters_out_of_range_are_refused_unused(n: int, r: int, p: int, salt: int) -> None:
    """A changed file cannot consume all memory. Here every salt is too short, so scrypt must not run."""
    protection = {"kind": "passphrase", "salt": "A" * (salt * 4 // 3 // 4 * 4), "n": n, "r": r, "p": p}
    document = {"format": "tenantq-keyring", "version": 1, "protection": protection, "keys": {}, "mac": ""}
    with pytest.raises(Invalid, match="out of range"):
        parse_keyring(json.dumps(document).encode(), Unlock("passphrase", PHRASE.encode()))


def test_creating_a_keyring_never_overwrites_another(ring: KeyringFile) -> None:
    """Nor does creating a key."""
    before = ring.path.read_bytes()
    with pytest.raises(Conflict, match="already exists"):
        ring.create()
    with pytest.raises(Conflict, match="'main' already exists"):
        ring.add_key("main", NOW)
    assert ring.path.read_bytes() == before


def test_missing_keys_cannot_be_changed(ring: KeyringFile) -> None:
    """Each operation raises a typed error."""
    for call in (
        lambda: ring.rotate_key("none", NOW),
        lambda: ring.set_enabled("none", enabled=True),
        lambda: ring.remove_key("none"),
    ):
        with pytest.raises(NotFound, match="'none'"):
            call()
    with pytest.raises(Invalid):
        ring.add_key("no name", NOW)


def test_a_missing_directory_is_a_typed_error(tmp_path: Path) -> None:
    """For creating, changing and reading."""
    ring = KeyringFile(tmp_path / "none" / "keyring.json", Unlock("master_key", MASTER))
    for call in (ring.create, ring.read, lambda: ring.add_key("main", NOW)):
        with pytest.raises(Invalid, match="No such file"):
            call()


# ---- unlocking ----


async def test_a_passphrase_from_a_file_or_the_environment_unlocks_the_keyring(tmp_path: Path) -> None:
    """A line ending does not matter."""
    ring = KeyringFile(tmp_path / "keyring.json", Unlock("passphrase", PHRASE.encode()))
    ring.create(scrypt_n=CHEAP)
    ring.add_key("main", NOW)
    file = secret_file(tmp_path / "passphrase", PHRASE.encode() + b"\n")
    by_file = LocalKms(LocalSettings(keyring=str(ring.path), passphrase_file=str(file)))
    by_env = LocalKms(LocalSettings(keyring=str(ring.path), **BY_ENV), {"PASS": PHRASE})
    wrapped = await by_file.wrap("main", b"k" * 32, CONTEXT)
    assert await by_env.unwrap("main", wrapped, CONTEXT) == b"k" * 32
    await by_file.close()
    await by_env.close()


def test_a_wrong_secret_does_not_unlock_the_keyring(ring: KeyringFile, tmp_path: Path) -> None:
    """The error contains neither the right nor the wrong secret."""
    wrong = secret_file(tmp_path / "wrong", b"w" * 32)
    with pytest.raises(Invalid, match="wrong") as caught:
        LocalKms(LocalSettings(keyring=str(ring.path), master_key_file=str(wrong)))
    assert "www" not in str(caught.value)
    with pytest.raises(Invalid, match="protected by a master key, not by a passphrase") as caught:
        LocalKms(LocalSettings(keyring=str(ring.path), **BY_ENV), {"PASS": PHRASE})
    assert "horse" not in repr(caught.value)


async def test_a_master_key_may_be_hexadecimal(ring: KeyringFile, tmp_path: Path) -> None:
    """With or without a line ending."""
    for text in (MASTER.hex(), MASTER.hex().upper() + "\n"):
        file = secret_file(tmp_path / "hex", text.encode())
        kms = LocalKms(LocalSettings(keyring=str(ring.path), master_key_file=str(file)))
        assert await kms.wrap("main", b"k", CONTEXT)
        await kms.close()


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33, b"zz" * 32, MASTER.hex()[:-2].encode(), b"\xff" * 64])
def test_a_master_key_of_another_form_is_refused_without_echo(
    ring: KeyringFile, tmp_path: Path, content: bytes
) -> None:
    """The error says which form is required."""
    file = secret_file(tmp_path / "bad", content)
    with pytest.raises(Invalid, match="32 random bytes") as caught:
        LocalKms(LocalSettings(keyring=str(ring.path), master_key_file=str(file)))
    assert "xxx" not in str(caught.value)
    assert "zz" not in str(caught.value)


@pytest.mark.parametrize(
    ("ways", "text"),
    [
        ({}, "exactly one"),
        ({"passphrase_env": "A", "passphrase_file": "b"}, "exactly one"),
        ({"passphrase_env": "UNSET"}, "UNSET is not set"),
        ({"passphrase_env": "SHORT"}, "12 characters"),
        ({"passphrase_file": "/nowhere/at/all"}, "No such file"),
        ({"master_key_file": "/nowhere/at/all"}, "No such file"),
    ],
)
def test_settings_without_a_usable_secret_are_refused(ring: KeyringFile, ways: dict[str, str], text: str) -> None:
    """The error names the setting."""
    with pytest.raises(Invalid, match=text) as caught:
        LocalKms(LocalSettings(keyring=str(ring.path), **ways), {"SHORT": "short"})
    assert str(caught.value).startswith("kms.local")


async def test_the_secret_of_a_keyring_can_be_changed(kms: LocalKms, ring: KeyringFile, tmp_path: Path) -> None:
    """The keys and their states stay the same, and the old secret no longer works."""
    ring.rotate_key("main", NOW)
    ring.add_key("off", NOW)
    ring.set_enabled("off", enabled=False)
    wrapped = await kms.wrap("main", b"k" * 32, CONTEXT)
    ring.protect_with(Unlock("passphrase", PHRASE.encode()), scrypt_n=CHEAP)
    with pytest.raises(KmsUnavailable):
        await kms.unwrap("main", wrapped, CONTEXT)
    changed = LocalKms(LocalSettings(keyring=str(ring.path), **BY_ENV), {"PASS": PHRASE})
    assert await changed.unwrap("main", wrapped, CONTEXT) == b"k" * 32
    with pytest.raises(KeyDisabled):
        await changed.wrap("off", b"k", CONTEXT)
    assert ring.rotate_key("main", NOW) == 3
    await changed.close()


def test_no_representation_shows_a_secret(ring: KeyringFile, kms: LocalKms) -> None:
    """Neither repr nor str of any object."""
    texts = " ".join(map(repr, (Unlock("master_key", MASTER), ring.read(), kms, ring.read().document)))
    assert MASTER.hex() not in texts
    assert repr(MASTER)[2:-1] not in texts


def test_temporary_files_of_a_killed_process_are_removed_by_the_next_change(ring: KeyringFile) -> None:
    """They contain every key, including keys destroyed later."""
    left = secret_file(ring.path.with_name(".keyring.json.new"), ring.path.read_bytes())
    other = secret_file(ring.path.with_name(".another.json.new"), b"not ours")
    ring.remove_key("main")
    assert (left.exists(), other.exists()) == (False, True)


async def test_a_symlinked_keyring_is_changed_at_its_target(
    given_settings: LocalSettings, ring: KeyringFile, tmp_path: Path
) -> None:
    """Replacing the link would leave the old file with destroyed keys."""
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc" / "keyring.json"
    link.symlink_to(ring.path)
    through = KeyringFile(link, Unlock("master_key", MASTER))
    through.add_key("second", NOW)
    through.remove_key("main")
    assert link.is_symlink()
    assert sorted(ring.read().document.keys) == sorted(through.read().document.keys) == ["second"]
    assert [path.name for path in link.parent.iterdir()] == ["keyring.json"]
    kms = LocalKms(LocalSettings(keyring=str(link), master_key_file=given_settings.master_key_file))
    assert await kms.unwrap("second", await kms.wrap("second", b"x", CONTEXT), CONTEXT) == b"x"
    await kms.close()
