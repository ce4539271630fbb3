"""A finding is told once; again for a new episode or when it has become worse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.news import News


def finding(first: int, last: int, rule: str = "loss-spike", severity: int = 1) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity(severity),
        message="it",
        first_step=first,
        last_step=last,
        cause="",
        remedy="",
        evidence=(),
    )


def told(news: News, *findings: Finding) -> list[tuple[str, int]]:
    diagnosis: Any = SimpleNamespace(findings=findings)
    return [(new.rule, new.first_step) for new in news.of(diagnosis)]


def test_an_episode_that_goes_on_is_told_once() -> None:
    news = News()
    assert told(news, finding(10, 20)) == [("loss-spike", 10)]
    assert told(news, finding(10, 30)) == []
    assert told(news, finding(8, 40)) == []  # its start may still move


def test_a_later_episode_is_new() -> None:
    news = News()
    assert told(news, finding(10, 20)) == [("loss-spike", 10)]
    assert told(news, finding(10, 20), finding(50, 51)) == [("loss-spike", 50)]


def test_worse_is_told_again() -> None:
    news = News()
    assert told(news, finding(10, 20)) != []
    assert told(news, finding(10, 30, severity=3)) == [("loss-spike", 10)]
    assert told(news, finding(10, 40, severity=3)) == []


def test_another_run_begins_with_everything_new() -> None:
    news = News()
    assert told(news, finding(10, 20), finding(5, 6, rule="a")) == [("a", 5), ("loss-spike", 10)]
    news.forget()
    assert told(news, finding(10, 20)) == [("loss-spike", 10)]
