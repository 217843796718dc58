"""Durations: what is accepted is exact, and what is not is refused with the parameter's name and the fix."""

import decimal
import enum
import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import ConfigurationError
from tenure._durations import MAX_MS, Duration, check_ttl_ms, to_ms, to_seconds

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# No deadline: a machine that is busy with other suites stalls for longer than any example takes.
examples = settings(deadline=None, max_examples=150)


class Reading(float):
    """A float whose repr is not a number's: as that of numpy.float64, which is a subclass of float too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Reading({float(self)})"


class Preset(enum.IntEnum):
    SHORT = 5


def refusal(value: object, *, name: str = "ttl", at_least_ms: int = 1) -> str:
    with pytest.raises(ConfigurationError) as refused:
        to_ms(value, name=name, at_least_ms=at_least_ms)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (30, 30_000),
        (0.25, 250),
        (0.1, 100),
        (1.1, 1100),
        (1e-3, 1),
        (86_400.0, 86_400_000),
        (timedelta(minutes=5), 300_000),
        (timedelta(milliseconds=1), 1),
        (timedelta(weeks=9), 5_443_200_000),
        ("250ms", 250),
        ("30s", 30_000),
        ("1.5s", 1500),
        ("5m", 300_000),
        ("0.5h", 1_800_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        (" 30s ", 30_000),
        (Reading(0.25), 250),
        (Preset.SHORT, 5000),
        (36_600 * 86_400, MAX_MS),
    ],
)
def test_a_duration_is_told_in_whole_milliseconds(said: Duration, told: int) -> None:
    assert to_ms(said) == told
    assert type(to_ms(said)) is int


@pytest.mark.parametrize("said", [0.0004, "0.5ms", timedelta(microseconds=1), 30.0000001, "1.0001s", "1.00000000001s"])
def test_a_fraction_of_a_millisecond_is_refused_and_not_rounded(said: Duration) -> None:
    assert "whole number of milliseconds" in refusal(said)


def test_a_fraction_in_the_thirtieth_decimal_is_refused_too() -> None:
    refusal("1." + "0" * 30 + "1s")


@pytest.mark.parametrize("said", [0, 0.0, -0.0, -1, -0.001, timedelta(0), timedelta(seconds=-5), "0s", "0ms"])
def test_zero_and_less_are_refused(said: Duration) -> None:
    assert "at least 1 ms" in refusal(said)


@pytest.mark.parametrize("said", [36_600 * 86_400 + 1, 10**30, 1e300, "36601d", timedelta(days=999_999_999)])
def test_more_than_a_hundred_years_is_a_mistake_in_units(said: Duration) -> None:
    assert "hundred years" in refusal(said)


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    assert "hundred years" in refusal(10**5000)
    assert "at least 1 ms" in refusal(-(10**5000))


@pytest.mark.parametrize("said", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_refused(said: float) -> None:
    assert "finite" in refusal(said)


@pytest.mark.parametrize("said", [True, False, None, [30], b"30s", 3 + 0j, decimal.Decimal(30), object()])
def test_what_is_no_number_is_refused_by_its_type(said: object) -> None:
    message = refusal(said)
    assert "no duration" in message
    assert type(said).__name__ in message


@pytest.mark.parametrize(
    "said",
    ["", " ", "30", "s", "30 s", "-1s", "+1s", "1e3s", ".5s", "5.s", "30S", "1h30m", "30s\n5m", "\u0663\u0660s", "inf"],
    ids=ascii,
)
def test_a_text_in_any_other_form_is_refused(said: str) -> None:
    assert "no duration" in refusal(said)


@pytest.mark.parametrize("said", [0, -1, True, math.nan, 0.0004, "soon", None, 10**9 * 86_400])
def test_a_refusal_names_the_parameter_and_the_fix(said: object) -> None:
    message = refusal(said, name="max_hold")
    assert message.startswith("max_hold is ")
    assert 'Give seconds as a number, a timedelta, or a string such as "30s" or "5m".' in message


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("x" * 10_000_000, id="no number"),
        pytest.param("1" * 10_000_000 + "s", id="too many digits"),
        pytest.param("0." + "0" * 10_000_000 + "1s", id="too many decimals"),
    ],
)
def test_a_text_of_ten_megabytes_is_refused_and_stays_out_of_the_message(said: str) -> None:
    assert len(refusal(said)) < 300


def test_the_smallest_value_allowed_is_the_callers_to_say() -> None:
    assert to_ms(0, at_least_ms=0) == 0
    assert to_ms(0.05, at_least_ms=50) == 50
    assert "at least 50 ms" in refusal(0.049, at_least_ms=50)


def test_the_decimal_context_of_the_application_changes_nothing() -> None:
    with decimal.localcontext() as context:
        context.prec = 3
        assert to_ms("123.456s") == 123_456
        assert to_ms(12_345.678) == 12_345_678
        assert to_ms(timedelta(milliseconds=12_345_678)) == 12_345_678


@given(st.integers(1, MAX_MS))
@examples
def test_every_whole_number_of_milliseconds_reads_back_from_every_form(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    assert to_ms(timedelta(milliseconds=milliseconds)) == milliseconds
    assert to_ms(f"{milliseconds}ms") == milliseconds
    assert to_ms(f"{seconds}.{rest:03}s") == milliseconds
    assert to_ms(milliseconds / 1000) == milliseconds


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
@examples
def test_a_text_is_accepted_exactly_where_it_is_whole_milliseconds(whole: int, millionths: int, unit: str) -> None:
    text = f"{whole}.{millionths:06}{unit}"
    exact = Fraction(f"{whole}.{millionths:06}") * UNITS[unit]
    if exact.denominator == 1 and 1 <= exact <= MAX_MS:
        assert to_ms(text) == exact
    else:
        refusal(text)


@given(st.floats())
@examples
def test_a_float_is_accepted_exactly_where_its_shortest_decimal_is_whole_milliseconds(seconds: float) -> None:
    exact = Fraction(repr(seconds)) * 1000 if math.isfinite(seconds) else Fraction(-1)
    if exact.denominator == 1 and 1 <= exact <= MAX_MS:
        assert to_ms(seconds) == exact
    else:
        refusal(seconds)


@given(st.timedeltas())
@examples
def test_a_timedelta_is_accepted_exactly_where_it_is_whole_milliseconds(span: timedelta) -> None:
    milliseconds, rest = divmod(span, timedelta(milliseconds=1))
    if not rest and 1 <= milliseconds <= MAX_MS:
        assert to_ms(span) == milliseconds
    else:
        refusal(span)


@given(st.text())
@examples
def test_no_text_raises_anything_but_a_configuration_error(text: str) -> None:
    try:
        assert to_ms(text) >= 1
    except ConfigurationError as refused:
        assert str(refused).startswith("duration is ")  # noqa: PT017 -- most texts are refused, some are not


@pytest.mark.parametrize(
    ("said", "told"), [(0, 0.0), (0.0, 0.0), (2, 2.0), (0.25, 0.25), ("500ms", 0.5), (math.inf, math.inf)]
)
def test_a_span_to_wait_may_be_nothing_or_for_ever(said: Duration, told: float) -> None:
    assert to_seconds(said, name="wait") == told


@pytest.mark.parametrize("said", [-1, -math.inf, math.nan, True, "inf", "soon", 0.0001])
def test_a_span_to_wait_is_refused_like_any_other_duration(said: Duration) -> None:
    with pytest.raises(ConfigurationError, match=r"^wait is "):
        to_seconds(said, name="wait")


@pytest.mark.parametrize("ttl_ms", [1, 30_000, 2**31, 2**32, MAX_MS])
def test_a_store_is_told_whole_milliseconds_beyond_32_bits_too(ttl_ms: int) -> None:
    assert check_ttl_ms(ttl_ms) == ttl_ms


@pytest.mark.parametrize("ttl_ms", [True, 30.0, "30000", None, math.nan, timedelta(seconds=30), Preset.SHORT])
def test_a_store_is_told_nothing_but_an_int(ttl_ms: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^ttl_ms is a {type(ttl_ms).__name__}: .* as an int\.$"):
        check_ttl_ms(ttl_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl_ms", [0, -1, MAX_MS + 1])
def test_a_store_is_told_no_ttl_out_of_range(ttl_ms: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"^ttl_ms is {ttl_ms}: it must be from 1 to {MAX_MS}"):
        check_ttl_ms(ttl_ms)


def test_a_store_is_told_no_ttl_that_is_too_long_to_print() -> None:
    with pytest.raises(ConfigurationError, match="hundred years"):
        check_ttl_ms(10**5000)
