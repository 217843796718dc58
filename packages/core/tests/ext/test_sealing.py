"""The sealer: what opens, what does not and says why, and what it never tells."""

import copy
import pickle
import secrets
import struct
import sys
import traceback
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.errors import ConfigurationError, SealError
from tenure.ext.sealing import AesGcmSealer

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
CANARY = b"canary: 4111 1111 1111 1111"


def bound(key: str = "key", owner: str = "owner", fingerprint: str = "print") -> bytes:
    """Length-prefixed, as the engine binds a response to its record."""
    parts = [part.encode() for part in (key, owner, fingerprint)]
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


@pytest.fixture
def sealer() -> AesGcmSealer:
    return AesGcmSealer({"old": OLD, "new": NEW}, current="new")


def refused(sealer: AesGcmSealer, sealed: Any, bound_to: bytes = bound()) -> str:
    with pytest.raises(SealError) as caught:
        sealer.open(sealed, bound_to=bound_to)
    error: BaseException | None = caught.value
    told = "".join(traceback.format_exception(error)) + repr(error)
    for secret in (CANARY, OLD, NEW, b"canary"):
        assert secret.decode("latin-1") not in told
        assert repr(secret)[2:-1] not in told
        assert secret.hex() not in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


# ------------------------------------------------------------------------------------------ what opens


@given(st.binary(max_size=2000), st.binary(max_size=200))
@example(b"", b"")
def test_what_was_sealed_opens(plain: bytes, bound_to: bytes) -> None:
    sealer = AesGcmSealer({"k": NEW}, current="k")
    sealed = sealer.seal(plain, bound_to=bound_to)
    assert sealer.open(sealed, bound_to=bound_to) == plain
    assert len(sealed) == len(plain) + 33 + len("k")


def test_a_mebibyte_is_sealed(sealer: AesGcmSealer) -> None:
    plain = secrets.token_bytes(2**20)
    assert sealer.open(sealer.seal(plain, bound_to=bound()), bound_to=bound()) == plain


def test_nothing_of_the_response_or_its_binding_is_in_the_envelope(sealer: AesGcmSealer) -> None:
    sealed = sealer.seal(CANARY, bound_to=bound("canary-key"))
    assert b"canary" not in sealed
    assert b"4111" not in sealed
    assert NEW not in sealed


def test_the_envelope_is_as_the_module_says(sealer: AesGcmSealer) -> None:
    """Opened here by the cipher alone: who reads the description can write a tool that opens records."""
    sealed = sealer.seal(CANARY, bound_to=bound())
    assert sealed.startswith(b"TNS\x01\x03new")
    head, nonce, rest = sealed[:8], sealed[8:20], sealed[20:]
    assert AESGCM(NEW).decrypt(nonce, rest, head + bound()) == CANARY


def test_no_two_envelopes_share_a_nonce(sealer: AesGcmSealer) -> None:
    assert len({sealer.seal(b"", bound_to=b"")[8:20] for _ in range(2000)}) == 2000


# -------------------------------------------------------------------------------------------- rotation


def test_after_a_rotation_old_responses_open_and_new_ones_are_sealed_under_the_new_key() -> None:
    before = AesGcmSealer({"2026-05": OLD}, current="2026-05")
    both = AesGcmSealer({"2026-05": OLD, "2026-11": NEW}, current="2026-11")
    after = AesGcmSealer({"2026-11": NEW}, current="2026-11")
    old, new = before.seal(b"old", bound_to=bound()), both.seal(b"new", bound_to=bound())
    assert both.open(old, bound_to=bound()) == b"old"
    assert after.open(new, bound_to=bound()) == b"new"
    assert "under the key '2026-05', which is not here" in refused(after, old)
    assert "under the key '2026-11', which is not here" in refused(before, new)


def test_the_new_key_is_given_out_before_it_seals() -> None:
    """The first step of a rotation: every instance opens what the first one that is switched over seals."""
    waiting = AesGcmSealer({"old": OLD, "new": NEW}, current="old")
    switched = AesGcmSealer({"old": OLD, "new": NEW}, current="new")
    assert waiting.open(switched.seal(b"x", bound_to=b""), bound_to=b"") == b"x"
    assert switched.open(waiting.seal(b"x", bound_to=b""), bound_to=b"") == b"x"


# -------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize(
    "elsewhere",
    [
        bound(key="another"),
        bound(owner="another"),
        bound(fingerprint="another"),
        bound(key="keyo", owner="wner"),
        bound()[:-1],
        bound() + b"\0",
        b"",
    ],
    ids=["key", "owner", "fingerprint", "a letter moved", "shorter", "longer", "nothing"],
)
def test_a_response_that_was_moved_to_another_record_does_not_open(sealer: AesGcmSealer, elsewhere: bytes) -> None:
    assert "moved from another record" in refused(sealer, sealer.seal(CANARY, bound_to=bound()), elsewhere)


def test_another_key_under_the_same_id_does_not_open(sealer: AesGcmSealer) -> None:
    other = AesGcmSealer({"new": secrets.token_bytes(32)}, current="new")
    assert "another key under this id" in refused(other, sealer.seal(CANARY, bound_to=bound()))


def test_no_changed_byte_opens(sealer: AesGcmSealer) -> None:
    sealed = sealer.seal(CANARY, bound_to=bound())
    for place in range(len(sealed)):
        for change in (1, 0x80):
            changed = bytearray(sealed)
            changed[place] ^= change
            refused(sealer, bytes(changed))


def test_an_id_that_was_swapped_for_another_known_one_does_not_open() -> None:
    sealer = AesGcmSealer({"one": OLD, "two": NEW}, current="one")
    sealed = sealer.seal(CANARY, bound_to=bound())
    assert "does not open under the key 'two'" in refused(sealer, sealed.replace(b"one", b"two", 1))


def test_no_beginning_and_no_longer_one_opens(sealer: AesGcmSealer) -> None:
    sealed = sealer.seal(CANARY, bound_to=bound())
    for length in range(len(sealed)):
        refused(sealer, sealed[:length])
    assert "cut off" in refused(sealer, sealed[:30])
    assert "cut off" in refused(sealer, sealed[:4])
    refused(sealer, sealed + b"\0")


@pytest.mark.parametrize("plain", [b"", CANARY, b'{"canary": 1}', b"TN", b"\0" * 100, None, "TNS\x01", bytearray(60)])
def test_what_is_no_envelope_is_not_passed_through(sealer: AesGcmSealer, plain: Any) -> None:
    """Else whoever can write to the store could answer in place of the application."""
    assert "is not sealed" in refused(sealer, plain)


def test_an_envelope_of_a_later_form_says_so(sealer: AesGcmSealer) -> None:
    assert "a newer one wrote it" in refused(sealer, b"TNS\x02" + bytes(60))


def test_an_id_that_is_none_is_not_repeated(sealer: AesGcmSealer) -> None:
    assert "the id of its key is none" in refused(sealer, b"TNS\x01\x08\x1b[canary" + bytes(60))


@given(st.binary(max_size=200))
def test_whatever_is_read_gives_a_seal_error_and_nothing_else(noise: bytes) -> None:
    sealer = AesGcmSealer({"k": NEW}, current="k")
    for sealed in (noise, b"TNS\x01" + noise, b"TNS\x01\x01k" + noise):
        with pytest.raises(SealError):
            sealer.open(sealed, bound_to=b"")


# ---------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    ("keys", "current", "says"),
    [
        ({}, "a", "by their ids"),
        (None, "a", "by their ids"),
        (NEW, "a", "by their ids"),
        ([("a", NEW)], "a", "by their ids"),
        ({"a": bytes(16)}, "a", "has 16 bytes: AES-256 takes 32"),
        ({"a": bytes(33)}, "a", "has 33 bytes"),
        ({"a": NEW.hex()}, "a", "is a str: give 32 bytes"),
        ({"a": None}, "a", "is a NoneType"),
        ({"": NEW}, "", "key id"),
        ({"a" * 65: NEW}, "a", "key id"),
        ({"naïve": NEW}, "naïve", "key id"),
        ({"a\n": NEW}, "a\n", "key id"),
        ({NEW: "a"}, NEW, "key id"),
        ({1: NEW}, 1, "key id"),
        ({"a": NEW, "b": NEW}, "a", "the same key"),
        ({"a": NEW, "b": OLD}, "c", r"not among its keys \(a, b\)"),
        ({"a": NEW}, None, "not among its keys"),
    ],
)
def test_keys_that_cannot_be_are_refused_and_not_shown(keys: Any, current: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        AesGcmSealer(keys, current=current)
    for text in (NEW.hex(), repr(NEW), repr(NEW)[2:-1], str(bytes(16))):
        assert text not in f"{caught.value}{caught.value!r}"


def test_later_changes_of_the_mapping_change_nothing() -> None:
    keys = {"a": bytearray(NEW)}
    sealer = AesGcmSealer(keys, current="a")  # type: ignore[arg-type]  # a bytearray can be wiped afterwards
    sealed = sealer.seal(b"x", bound_to=b"")
    keys["a"][:] = bytes(32)
    del keys["a"]
    assert AesGcmSealer({"a": NEW}, current="a").open(sealed, bound_to=b"") == b"x"
    assert sealer.open(sealed, bound_to=b"") == b"x"


def test_no_key_is_in_a_repr_or_a_pickle(sealer: AesGcmSealer) -> None:
    assert repr(sealer) == str(sealer) == "AesGcmSealer(keys=['new', 'old'], current='new')"
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            take(sealer)


def test_cryptography_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install tenure\[sealing\]$"):
        AesGcmSealer({"a": NEW}, current="a")


# ------------------------------------------------------------------------------------------- planted


class Planted:
    """The sealer with one thing left out; each is caught by a fact above."""

    def __init__(self, *, binds: bool = True, names: bool = True, draws: bool = True) -> None:
        self.binds, self.names, self.draws = binds, names, draws

    def seal(self, plain: bytes, *, bound_to: bytes, name: bytes = b"one") -> bytes:
        head = b"TNS\x01\x03" + name
        nonce = secrets.token_bytes(12) if self.draws else bytes(12)
        aad = (head if self.names else b"") + (bound_to if self.binds else b"")
        return head + nonce + AESGCM(NEW).encrypt(nonce, plain, aad)

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        aad = (sealed[:8] if self.names else b"") + (bound_to if self.binds else b"")
        return AESGCM(NEW).decrypt(sealed[8:20], sealed[20:], aad)


def test_a_sealer_that_binds_nothing_opens_what_was_moved() -> None:
    """The control of the facts about moved records: what they look for can happen."""
    loose = Planted(binds=False)
    assert loose.open(loose.seal(CANARY, bound_to=bound()), bound_to=bound(key="another")) == CANARY


def test_a_sealer_that_does_not_bind_the_head_opens_under_another_id() -> None:
    loose = Planted(names=False)
    sealed = loose.seal(CANARY, bound_to=bound())
    assert loose.open(sealed.replace(b"one", b"two", 1), bound_to=bound()) == CANARY
    refused(AesGcmSealer({"one": NEW, "two": OLD}, current="one"), sealed)


def test_a_sealer_that_draws_no_nonce_repeats_itself() -> None:
    loose = Planted(draws=False)
    assert loose.seal(CANARY, bound_to=b"") == loose.seal(CANARY, bound_to=b"")
