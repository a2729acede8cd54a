"""The runtime's lines in the server's log."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from runtime.frontend import server_log


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def log_info(self, line: str) -> None:
        self.lines.append(("info", line))

    def log_warn(self, line: str) -> None:
        self.lines.append(("warn", line))

    def log_error(self, line: str) -> None:
        self.lines.append(("error", line))


def test_levels_go_with_the_lines_and_once_each() -> None:
    log, logger = logging.getLogger(server_log.NAME), Logger()
    before = (list(log.handlers), log.level, log.propagate)
    try:
        server_log.write_to(logger)
        server_log.write_to(logger)  # a second model in the process
        log.debug("not this")
        log.info("asked %d", 1)
        log.warning("slow")
        log.error("dead")
    finally:
        log.handlers, log.propagate = before[0], before[2]
        log.setLevel(before[1])
    assert logger.lines == [("info", "asked 1"), ("warn", "slow"), ("error", "dead")]


@given(st.text())
def test_an_id_is_one_short_printable_piece(text: str) -> None:
    shown = server_log.shown_id(text)
    assert len(shown) <= server_log.ID_CHARACTERS + 1
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
