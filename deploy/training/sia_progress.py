"""Report the progress of a training, or the remaining trials of a search, to SIA.

This file needs only Python's standard library; copy it beside your program. A training loop:

    from sia_progress import Training

    training = Training(epochs=30)
    for epoch in range(30):
        train(batch_size)
        training.epoch(epoch + 1, batch_size)

A hyper-parameter search reports its remaining trials whenever they change:

    from sia_progress import Trials

    trials = Trials()
    trials.left([(1, 3600.0), (1, 1800.0)])    # GPUs of each trial, and the seconds that it needs

Outside of SIA all calls do nothing. A failed report never stops the training, and the next report
corrects it. A loop that continues from a checkpoint passes the `regime` and the `config` that it
has saved.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote

TIMEOUT = 5.0
"""Timeout of a report in seconds. The training waits for the report."""


class _Reporter:
    """Reports by HTTP, or by the local backend's file."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.problem = ""
        self._environment = environment

    def _report(self, report: Mapping[str, object]) -> bool:
        """Send a report; return whether SIA accepted it.

        If it was not sent or not accepted, `problem` says why; outside of SIA `problem` is empty.
        """
        given = self._environment.get
        urls, token = given("SIA_REPORT_URL", ""), given("SIA_REPORT_TOKEN", "")
        job, attempt, file = given("SIA_JOB_ID"), given("SIA_ATTEMPT"), given("SIA_PROGRESS_FILE")
        self.problem = ""
        try:
            if job and attempt and urls and token:
                return self._post(urls, token, job, {**report, "attempt": int(attempt)})
            if file:
                Path(file).write_text(json.dumps(report) + "\n", encoding="utf-8")
                return True
        except (OSError, ValueError, HTTPException) as error:
            self.problem = f"{type(error).__name__}: {error}"
        return False

    def _post(self, urls: str, token: str, job: str, report: Mapping[str, object]) -> bool:
        """Try the URLs of all daemons: the leader and its standbys. Raises OSError, ValueError."""
        authority = self._environment.get("SIA_CA_FILE")
        for url in urls.split(","):
            asked = urllib.request.Request(
                f"{url.strip().rstrip('/')}/v1/jobs/{quote(job, safe='')}/progress",
                json.dumps(report).encode(),
                {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )
            context = ssl.create_default_context(cafile=authority) if authority else None
            try:
                with urllib.request.urlopen(asked, timeout=TIMEOUT, context=context):
                    self.problem = ""
                    return True
            except urllib.error.HTTPError as refused:
                self.problem = f"{refused.code}: {refused.read(500).decode(errors='replace')}"
                if refused.code < 500:
                    return False
            except (OSError, HTTPException) as error:
                self.problem = f"{type(error).__name__}: {error}"
        return False


class Training(_Reporter):
    """A training with a known number of epochs.

    Attributes:
        regime: Number of changes of the configuration so far.
        config: The present configuration, such as the batch size; None before the first report.
        problem: Why the latest report failed, in one line; empty if it succeeded.
    """

    def __init__(
        self,
        epochs: float,
        *,
        regime: int = 0,
        config: object = None,
        every: float = 30.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Report at most every `every` seconds, but always report a change of the configuration.

        Raises ValueError if `epochs` is not above 0, or if `every` is below 1, because SIA accepts
        one report a second.
        """
        if not epochs > 0:
            raise ValueError(
                f"epochs must be above 0 (got {epochs}); give the epochs of the whole training"
            )
        if not every >= 1:
            raise ValueError(
                f"every must be at least 1 (got {every}); SIA takes one report a second"
            )
        super().__init__(environment)
        self.regime, self.config = regime, config
        self._epochs, self._every = epochs, every
        self._tried: tuple[float, int] | None = None  # time and regime of the latest report

    def epoch(self, done: float, config: object = None) -> bool:
        """Report that `done` epochs are done, and the configuration of the next epoch.

        Return whether SIA accepted a report. The result is False if it is too early for a report,
        if the report failed (see `problem`), or outside of SIA. After a failed report the interval
        is the same, so a daemon that does not respond delays the training only by `TIMEOUT` in each
        interval.
        """
        if config is not None:
            self.regime += self.config not in (None, config)
            self.config = config
        now = time.monotonic()
        wait = self._every
        if self._tried is not None and self._tried[1] != self.regime:
            wait = 1.0
        if self._tried is not None and now < self._tried[0] + wait and done < self._epochs:
            return False
        share = min(1.0, max(0.0, done / self._epochs))
        told = self._report({"done": share, "regime": self.regime})
        self._tried = time.monotonic(), self.regime
        return told


class Trials(_Reporter):
    """The trials of a hyper-parameter search, which is one job of SIA.

    Attributes:
        problem: Why the latest report failed, in one line; empty if it succeeded.
    """

    def __init__(self, *, every: float = 30.0, environment: Mapping[str, str] = os.environ) -> None:
        """Report at most every `every` seconds, or after one second if trials came or went.

        Raises ValueError if `every` is below 1, because SIA accepts one report a second.
        """
        if not every >= 1:
            raise ValueError(
                f"every must be at least 1 (got {every}); SIA takes one report a second"
            )
        super().__init__(environment)
        self._every = every
        self._tried: tuple[float, Sequence[int]] | None = None  # time, and GPUs of each trial

    def left(self, trials: Sequence[tuple[int, float]]) -> bool:
        """Report the remaining trials: the GPUs of each, and the seconds that it still needs.

        Return whether SIA accepted a report. The result is False if it is too early for a report,
        if no trial remains, if the report failed (see `problem`), or outside of SIA.
        """
        now, gpus = time.monotonic(), sorted(each for each, _ in trials)
        if self._tried is not None:
            wait = self._every if self._tried[1] == gpus else 1.0
            if now < self._tried[0] + wait:
                return False
        if not trials:
            return False
        told = self._report({"trials": [[each, max(0.0, seconds)] for each, seconds in trials]})
        self._tried = time.monotonic(), gpus
        return told
