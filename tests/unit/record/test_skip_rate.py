import pytest

from forensics.record.skip_rate import WINDOW, SkipRateAlarm, calibration_skips


def run(alarm: SkipRateAlarm, skipped: list[bool], first: int = 0) -> dict[int, str]:
    told = {}
    for step, skip in enumerate(skipped, first):
        if line := alarm.update(step, skip):
            told[step] = line
    return told


def every(period: int, steps: int) -> list[bool]:
    return [step % period == 0 for step in range(steps)]


class TestInARow:
    def test_a_hundred_skips_raise_it_once(self):
        told = run(SkipRateAlarm(), [False] * 50 + [True] * 300)
        assert list(told) == [149]
        assert "last 100 steps were all skipped" in told[149]

    def test_ninety_nine_do_not(self):
        assert run(SkipRateAlarm(), ([True] * 49 + [False] * 2000) * 2) == {}
        assert not run(SkipRateAlarm(max_rate=1.0), [True] * 99 + [False] + [True] * 99)


class TestRate:
    def test_above_five_percent_for_a_hundred_steps(self):
        # One in ten: the 51st skip comes at step 500, and the rate stays above from there.
        told = run(SkipRateAlarm(), every(10, 1000))
        assert list(told) == [599]
        assert "for 100 steps in a row" in told[599]

    def test_at_five_percent_it_is_silent(self):
        assert run(SkipRateAlarm(), every(20, 5000)) == {}

    def test_is_always_over_a_thousand_steps(self):
        # A partial window would see 100 % here.
        assert run(SkipRateAlarm(), [True] * 20) == {}
        alarm = SkipRateAlarm()
        run(alarm, [True] * 20)
        assert alarm.rate == 0.02

    def test_old_skips_leave_the_window(self):
        alarm = SkipRateAlarm()
        run(alarm, [True] * 30 + [False] * (WINDOW - 29))
        assert alarm.rate == 0.029
        run(alarm, [False] * 29)
        assert alarm.rate == 0.0

    def test_it_speaks_again_after_a_calm_stretch(self):
        told = run(SkipRateAlarm(), [*every(10, 800), *[False] * 1200, *every(10, 800)])
        assert len(told) == 2


class TestCalibration:
    def test_skips_of_a_scale_that_calibrates_do_not_count(self):
        alarm = SkipRateAlarm(exempt=17)
        run(alarm, [True] * 16 + [False] * 184 + [True])
        assert alarm.rate == 0.0

    def test_more_than_calibration_can_need_do(self):
        alarm = SkipRateAlarm(exempt=17)
        run(alarm, [True] * 20)
        assert alarm.rate == 0.003

    def test_it_ends_with_two_hundred_clean_steps(self):
        alarm = SkipRateAlarm(exempt=17)
        run(alarm, [True] + [False] * 200 + [True])
        assert alarm.rate == 0.001

    @pytest.mark.parametrize(
        ("scale", "skips"), [(65536.0, 17), (2.0**32, 33), (1000.0, 11), (1.0, 0), (0.5, 0)]
    )
    def test_may_take_the_octaves_of_the_scale_and_one(self, scale, skips):
        assert calibration_skips(scale) == skips


def test_a_resumed_alarm_goes_on_as_if_nothing_had_happened():
    pattern = [True] * 5 + every(9, 1200) + [True] * 120
    whole, first, second = (SkipRateAlarm(exempt=3) for _ in range(3))
    expected = run(whole, pattern)
    told = run(first, pattern[:700])
    second.load_state_dict(first.state_dict())
    assert told | run(second, pattern[700:], 700) == expected
    assert second.rate == whole.rate
    assert len(expected) >= 1
