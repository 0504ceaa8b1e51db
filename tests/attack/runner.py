"""Runs attacks one after the other while a victim is monitored, and collects their outcomes."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.attack.limits import EVENT_MS, REPEATED_SLACK_MIB, SLACK_DESCRIPTORS, SLACK_MIB
from tests.attack.server import Peak, Server, Spec, faults_in, foreign_cpu_s, running
from tests.attack.stage import Attack, Stage
from tests.attack.watching import Report, Times, Watch, watching

_LONGEST_S = 60.0
"""An attack that takes longer is stopped, and has failed."""
_SETTLE_S = 16.0
"""How long after an attack the server may take to release memory and descriptors: longer than every
deadline."""
_TURNS_S = 20.0
_LOOK_S = 0.1
_MODEL_EVENT_MS = 250.0
"""Limit of the embedded model's time per event on two cores, with a second client."""
_TIMED_S = 1.0
"""Shortest time over which the victim is measured: percentiles of a shorter time mean nothing."""
_PAUSE_S = 0.2
"""Pause between turns of a victim whose latency is not judged: it then needs less of the CPU."""
_NICE = 10
"""Niceness of the attackers. Real ones are on other machines, so they get only the CPU that server and victim
leave."""
_MOST_FOREIGN = 0.3
"""Cores that other processes may use. Beyond that, times are shown but not judged."""
_FEWEST = 100
"""Fewest events for a percentile."""


class Unserved(Exception):
    """A server that is not under attack does not serve the victim."""


@dataclass
class Outcome:
    """The outcome of an attack."""

    attack: Attack
    seconds: float = 0.0
    times: Times = field(default_factory=Times)
    model_times: Times | None = None
    turns: int = 0
    before_mib: float = 0.0
    peak_mib: float = 0.0
    after_mib: float = 0.0
    descriptors: tuple[int, int] = (0, 0)
    faults: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """Faults in the latency only. Latency is noisy, so the attack may be repeated once."""
    kept: list[str] = field(default_factory=list)
    """Memory that the server keeps. It may be what its caches hold: then a repetition adds nothing to it."""
    notes: list[str] = field(default_factory=list)
    foreign_cores: float = 0.0
    """How many cores unrelated processes used during the attack."""

    @property
    def is_timed(self) -> bool:
        """Whether the victim's latency is valid: the machine was not busy with other processes."""
        return self.foreign_cores <= _MOST_FOREIGN


class Arena:
    """A server and its victim, for several attacks in sequence."""

    def __init__(self, server: Server, watch: Watch, spec: Spec, *, timed: bool) -> None:
        self.server = server
        self._shortest_s = _TIMED_S if timed else 0.0
        self.spec = spec
        self.is_impaired = False
        self._watch = watch

    def run(self, attack: Attack, seed: int, slack_mib: float = SLACK_MIB) -> Outcome:
        """Run one attack; return its outcome. ``slack_mib``: how much more memory the server may keep."""
        outcome = Outcome(attack)
        server, stage = self.server, Stage(self.server, self.spec, seed)
        self._watch.cut()
        outcome.before_mib, before = server.resident_mib(), server.descriptors()
        logged, began, foreign_s = len(server.log()), time.monotonic(), foreign_cpu_s()
        with Peak(server) as peak:
            _run(attack, stage)
            outcome.seconds = time.monotonic() - began
            time.sleep(max(0.0, self._shortest_s - outcome.seconds))
            during = self._watch.cut()
            outcome.foreign_cores = (foreign_cpu_s() - foreign_s) / (time.monotonic() - began)
            self._settle(outcome, before, slack_mib)
            turns_came = attack.victim_is_cut or self._watch.whole_turns(_TURNS_S)
        after = self._watch.cut()
        outcome.peak_mib, outcome.after_mib = peak.mib, server.resident_mib()
        outcome.descriptors = (before, server.descriptors())
        outcome.notes, outcome.faults = stage.notes, stage.faults
        if not attack.victim_is_cut:
            self._judge_victim(outcome, during, after, turns_came)
            self._judge_server(outcome, slack_mib)
        log = server.log()[logged:]
        outcome.faults += faults_in(log)
        outcome.faults += [f"not logged: {text}" for text in stage.wanted_in_log if text not in log]
        self.is_impaired = bool(outcome.faults) or attack.victim_is_cut
        return outcome

    def _settle(self, outcome: Outcome, descriptors: int, slack_mib: float) -> None:
        """Wait until memory and descriptors are released, or the time for that is over."""
        end = time.monotonic() + _SETTLE_S
        time.sleep(_LOOK_S)
        while time.monotonic() < end and not (
            self.server.resident_mib() <= outcome.before_mib + slack_mib
            and self.server.descriptors() <= descriptors + SLACK_DESCRIPTORS
        ):
            time.sleep(_LOOK_S)

    def _judge_victim(self, outcome: Outcome, during: Report, after: Report, turns_came: bool) -> None:
        outcome.turns = during.turns + after.turns
        windows = [each.times for each in (during, after) if each is during or each.times.count >= _FEWEST]
        outcome.times = max(windows, key=lambda times: times.p99)
        outcome.model_times = during.model_times
        lost = during.faults + after.faults
        outcome.faults += [f"victim: {fault}" for fault in lost[:3]]
        if not turns_came:
            outcome.faults.append("victim: no whole turn on each transport after the attack")
        slowest = next(each for each in (during, after) if each.times is outcome.times)
        # A process that only sleeps is late as well while attackers, server and victim share the machine.
        if outcome.times.p99 - slowest.lag.p99 > (outcome.attack.event_ms or EVENT_MS):
            outcome.slow.append(
                f"victim: p99 {outcome.times.p99:.0f} ms per event, {slowest.lag.p99:.0f} ms of a timer"
            )
        if (model := outcome.model_times) is not None and model.p99 > _MODEL_EVENT_MS:
            outcome.slow.append(f"victim: p99 {model.p99:.0f} ms per event of the model")

    def _judge_server(self, outcome: Outcome, slack_mib: float) -> None:
        grown, held = outcome.after_mib - outcome.before_mib, outcome.peak_mib - outcome.before_mib
        more = outcome.descriptors[1] - outcome.descriptors[0]
        if not self.server.is_alive:
            outcome.faults.append(f"the server ended with {self.server.process.returncode}")
        if grown > slack_mib:
            found = outcome.kept if grown <= 2 * SLACK_MIB else outcome.faults
            found.append(f"memory: {grown:.0f} MiB more than before, at most {slack_mib:.0f} are allowed")
        if held > outcome.attack.peak_mib:
            outcome.faults.append(
                f"memory: {held:.0f} MiB more during the attack, at most"
                f" {outcome.attack.peak_mib} are allowed"
            )
        if more > SLACK_DESCRIPTORS:
            outcome.faults.append(f"descriptors: {more} more than before")


def _run(attack: Attack, stage: Stage) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_LONGEST_S):
            await attack.run(stage)

    def go() -> None:
        os.nice(_NICE)  # this thread alone
        try:
            asyncio.run(bounded())
        except TimeoutError:
            stage.faults.append(f"the attack was stopped after {_LONGEST_S:.0f} s")
        except Exception as error:
            stage.faults.append(f"the attack broke off: {type(error).__name__} {error}"[:500])

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()


@contextlib.contextmanager
def arena(spec: Spec, *, timed: bool) -> Iterator[Arena]:
    """Start a server with a victim, and wait until it is served on every transport."""
    with running(spec) as server, watching(server, spec, 0.0 if timed else _PAUSE_S) as watch:
        arena = Arena(server, watch, spec, timed=timed)
        if not watch.whole_turns(_TURNS_S):
            raise Unserved(f"the victim is not served: {watch.cut().faults[:3]}\n{server.log()[-2000:]}")
        yield arena


class Campaign:
    """Runs attacks in sequence. Attacks with the same server settings share a server, until it is
    impaired."""

    def __init__(self, say: Callable[[str], None], seed: int, *, timed: bool = True) -> None:
        self._say = say
        self._seed = seed
        self._timed = timed
        self._stack = contextlib.ExitStack()
        self._arena: Arena | None = None

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, attack: Attack) -> Outcome:
        """Run an attack; repeat it once if only the latency was at fault, or the memory that is kept."""
        outcome = self._once(attack)
        is_slow = self._timed and outcome.is_timed and bool(outcome.slow)
        if (is_slow or outcome.kept) and not outcome.faults:
            self._say(f"  {attack.name}: {'; '.join(outcome.slow + outcome.kept)}; repeating")
            outcome = self._once(attack, REPEATED_SLACK_MIB if outcome.kept else SLACK_MIB)
        outcome.faults += outcome.kept
        if self._timed and outcome.is_timed:
            outcome.faults += outcome.slow
        return outcome

    def _once(self, attack: Attack, slack_mib: float = SLACK_MIB) -> Outcome:
        return self._ready(attack.spec).run(attack, self._seed, slack_mib)

    def _ready(self, spec: Spec) -> Arena:
        current = self._arena
        if current is None or current.spec != spec or current.is_impaired or not current.server.is_alive:
            self._replace()
            self._arena = self._stack.enter_context(arena(spec, timed=self._timed))
        assert self._arena is not None
        return self._arena

    def _replace(self) -> None:
        self._stack.close()
        self._arena = None
