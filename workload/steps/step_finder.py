"""Finds the training step of an unknown script from the order of its optimizers' steps. Pure.

The script's work is cut into segments, each of which ends when an optimizer has stepped. A training step is the
shortest sequence of segments that repeats, its pattern: one segment for most scripts, two for a GAN, six for a GAN
whose critic steps five times. Gradient accumulation shows in the backward passes of a segment.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

from workload.contract.errors import UsageError
from workload.contract.text import counted

# A sequence of segments that occurs three times in a row is the training step.
REPEATS = 3
# A script without a repeating sequence is refused after this many optimizer steps.
MOST_SEGMENTS = 200
# Length of the longest sequence that can be found, because MOST_SEGMENTS segments must hold the sequence three times.
LONGEST = MOST_SEGMENTS // REPEATS
# The search for a repeating sequence begins again after MOST_IRREGULAR irregular steps in a row. It also begins again
# after MOST_IRREGULAR irregular steps in all, if they are more than IRREGULAR_SHARE of the number of regular steps.
MOST_IRREGULAR, IRREGULAR_SHARE = 5, 0.5
# A script that marks its steps has done so within this many replays, even where a step replays several graphs.
REPLAYS_WITHOUT_MARK = 100


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """Work of a script up to an optimizer's step. `optimizer`: number of the optimizer, in the order of first steps.

    `backward`: number of backward passes before the step; `closures`: number of backward passes inside the step, as
    LBFGS makes them; `batches`: number of batches fetched. `kind`: one number for all optimizers of a class whose
    parameters have the same shapes; None for an optimizer that is like no other.
    """

    optimizer: int
    backward: int = 1
    closures: int = 0
    batches: int = 1
    kind: int | None = None

    @property
    def key(self) -> tuple[int, int, bool]:
        """Facts of a segment that repeat: optimizer, number of backward passes, and whether there are closure calls.

        The number of closure calls may depend on values, and is left out.
        """
        return self.optimizer, self.backward, self.closures > 0


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Segments of one training step, as they were when their repeating sequence was found.

    `rest`: the shorter step at the end of each epoch, with which a gradient accumulation uses up the data.
    """

    segments: tuple[OptimizerStep, ...]
    rest: OptimizerStep | None = None

    @property
    def backward(self) -> int:
        """Number of backward passes in a step."""
        return sum(segment.backward + segment.closures for segment in self.segments)

    @cached_property
    def batches(self) -> int:
        """Number of batches in a step."""
        return sum(segment.batches for segment in self.segments)

    @cached_property
    def keys(self) -> list[tuple[int, int, bool]]:
        """Key of each segment: optimizer, number of backward passes, and whether there are closure calls."""
        return [segment.key for segment in self.segments]

    def words(self, optimizers: Sequence[str]) -> str:
        """Description of a step, `4 backward passes and 1 SGD step`; `optimizers`: names by number."""
        steps = Counter(segment.optimizer for segment in self.segments)
        names = Counter(optimizers[number] for number in steps)
        texts = []
        for number, times in sorted(steps.items()):
            name = optimizers[number]
            which = f" of optimizer {number + 1}" if names[name] > 1 else ""
            texts.append(f"{counted(times, f'{name} step')}{which}")
        parts = [counted(self.backward, "backward pass"), *texts]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"


class Seen(Enum):
    """Meaning of an optimizer's step in the search for the training step."""

    UNKNOWN = auto()  # no repeating sequence is known yet
    FOUND = auto()  # a repeating sequence was found, and a training step has ended
    INSIDE = auto()  # a part of a training step
    STEP = auto()  # the end of a training step
    IRREGULAR = auto()  # the end of work that was no training step
    LOST = auto()  # the known sequence does not repeat any more: the search begins again
    UNCLEAR = auto()  # no sequence repeats


class StepFinder:
    """Finds the sequence of segments that repeats, then compares every further segment with that sequence."""

    def __init__(self) -> None:
        self.pattern: Pattern | None = None
        self._segments: deque[OptimizerStep] = deque(maxlen=MOST_SEGMENTS)
        self._successors = _Successors()
        self._candidate: Pattern | None = None
        self._position = self._searched = 0
        self._off_pattern = 0
        self._regular = self._irregular = self._irregular_in_a_row = 0

    def add(self, segment: OptimizerStep) -> Seen:
        """Record the segment that an optimizer's step has ended, and return the meaning of this step."""
        is_split = self._successors.record(segment)
        self._segments.append(segment)
        if self.pattern is None:
            return self._search()
        # If `is_split`, two optimizers step in turn, although the second was taken for the successor of the first.
        return self._lose() if is_split else self._follow(self.pattern, self._successors.with_first_optimizer(segment))

    def _search(self) -> Seen:
        self._searched += 1
        if self._candidate is None:
            segments = [self._successors.with_first_optimizer(segment) for segment in self._segments]
            self._candidate = find(segments)
            # If the script did other work first, the repeating sequence is found in the middle of a step: wait for the
            # end of that step.
            self._position = _segments_since_end(self._candidate, segments) if self._candidate else 0
        else:
            self._position = (self._position + 1) % len(self._candidate.segments)
        if self._candidate and self._position == 0:
            self.pattern = self._candidate
            return Seen.FOUND
        return Seen.UNCLEAR if self._searched >= MOST_SEGMENTS else Seen.UNKNOWN

    def _follow(self, pattern: Pattern, segment: OptimizerStep) -> Seen:
        keys = pattern.keys
        # After LONGEST regular steps, a step of an optimizer that has no segment in the sequence may be an exception.
        if self._regular < LONGEST and all(segment.optimizer != known for known, *_ in keys):
            return self._lose()
        if self._off_pattern:
            last = list(self._segments)[-len(keys) :]
            if [self._successors.with_first_optimizer(segment).key for segment in last] != keys:
                self._off_pattern += 1
                return self._lose() if self._off_pattern > MOST_IRREGULAR * len(keys) else Seen.INSIDE
            # The last segments form a whole step again; the beginning of that step was not recognised.
            self._off_pattern = self._position = 0
            return Seen.IRREGULAR
        if segment.key != keys[self._position]:
            is_rest = pattern.rest is not None and segment.key == pattern.rest.key
            return Seen.IRREGULAR if is_rest else self._broken(len(keys))
        self._position = (self._position + 1) % len(keys)
        if self._position:
            return Seen.INSIDE
        self._regular, self._irregular_in_a_row = self._regular + 1, 0
        return Seen.STEP

    def _broken(self, length: int) -> Seen:
        self._irregular += 1
        self._irregular_in_a_row += 1
        self._off_pattern, self._position = int(length > 1), 0
        is_often = self._irregular >= MOST_IRREGULAR and self._irregular > IRREGULAR_SHARE * self._regular
        if is_often or self._irregular_in_a_row >= MOST_IRREGULAR:
            return self._lose()
        return Seen.INSIDE if self._off_pattern else Seen.IRREGULAR

    def _lose(self) -> Seen:
        self.pattern = self._candidate = None
        self._searched = self._position = self._off_pattern = 0
        self._regular = self._irregular = self._irregular_in_a_row = 0
        return Seen.LOST


@dataclass(kw_only=True)
class Captures:
    """CUDA graphs of the script. Hooks see the operations of a step while it is captured, and none in its replays.

    `is_open`: a graph is being captured. `has_step`: an optimizer has stepped in a capture; `replays`: number of
    replays since then.
    """

    is_open: bool = False
    has_step: bool = False
    replays: int = 0

    def error(self, *, is_marked: bool, is_over: bool = False) -> UsageError | None:
        """Error for a script whose training steps are replays, unless it marks them or, if not `is_over`, still may."""
        if is_marked or self.replays < (1 if is_over else REPLAYS_WITHOUT_MARK):
            return None
        return UsageError(
            "the script captures its optimizer's step in a CUDA graph, and hooks do not see the steps that it replays",
            hint="`import rooflaunch`, and `with rooflaunch.step():` around each replay and the copy of its batch",
        )


class _Successors:
    """Optimizers that replace an earlier optimizer: K-fold training makes a new optimizer for each fold.

    A new optimizer of the same kind, with the same passes before its step, is a successor. If the earlier optimizer
    steps again before its successor has taken `REPEATS` steps in a row, the two step in turn, and the new optimizer is
    no successor.
    """

    def __init__(self) -> None:
        # `_last`: last segment by optimizer, beginning with the optimizer that stepped longest ago. `_later`: successor
        # by predecessor. `_earlier`: predecessor by successor.
        self._last: dict[int, OptimizerStep] = {}
        self._later: dict[int, int] = {}
        self._earlier: dict[int, int] = {}
        # First optimizer of a chain of successors, by the number of each later optimizer in the chain.
        self._first: dict[int, int] = {}
        self._steady: set[int] = set()
        self._in_a_row: tuple[int, int] = (-1, 0)

    def record(self, segment: OptimizerStep) -> bool:
        """Record an optimizer's step. Return True if the step shows that a supposed successor is none."""
        number, is_split = segment.optimizer, False
        known, times = self._in_a_row
        self._in_a_row = number, times + 1 if known == number else 1
        if self._in_a_row[1] >= REPEATS:
            self._steady.add(number)
        if number not in self._last:
            self._succeed(segment)
        elif number in self._later and self._later[number] not in self._steady:
            self._split(self._later.pop(number))
            is_split = True
        self._last.pop(number, None)
        self._last[number] = segment
        return is_split

    def _succeed(self, segment: OptimizerStep) -> None:
        number = segment.optimizer
        for earlier, last in self._last.items():
            is_alike = segment.kind is not None and last.kind == segment.kind and last.key[1:] == segment.key[1:]
            if is_alike and earlier not in self._later:
                self._first[number] = self._first.get(earlier, earlier)
                self._earlier[number], self._later[earlier] = earlier, number
                # A script may make thousands of optimizers: forget an optimizer whose successor has a successor.
                if (forgotten := self._earlier.pop(earlier, None)) is not None:
                    self._later.pop(forgotten, None)
                    self._last.pop(forgotten, None)
                return

    def _split(self, first: int) -> None:
        """Record that `first` replaces no earlier optimizer, and that its successors replace `first`."""
        self._earlier.pop(first, None)
        later: int | None = first
        while later is not None:
            self._first[later] = first
            later = self._later.get(later)

    def with_first_optimizer(self, segment: OptimizerStep) -> OptimizerStep:
        """Copy of the segment, with the script's original optimizer in place of an optimizer that replaced it."""
        first = self._first.get(segment.optimizer, segment.optimizer)
        return segment if first == segment.optimizer else replace(segment, optimizer=first)


def find(segments: Sequence[OptimizerStep]) -> Pattern | None:
    """Shortest sequence that the last segments repeat three times, and that has every optimizer in use; else None."""
    in_use = _in_use(segments)
    keys = [segment.key for segment in segments]
    passes = any(segment.backward + segment.closures for segment in segments)
    for length in range(1, len(keys) // REPEATS + 1):
        candidate = keys[-length:]
        if keys[-REPEATS * length :] == candidate * REPEATS and {key[0] for key in candidate} == in_use:
            last = list(segments[-length:])
            start = _start_of_step(last)
            pattern = Pattern(segments=tuple(last[start:] + last[:start]))
            # A sequence without a backward pass is only a part of a step, in which several optimizers step after one
            # backward pass.
            if pattern.backward or not passes:
                return _without_rest(pattern)
    return None


def _without_rest(pattern: Pattern) -> Pattern:
    """Pattern of one step, if all its segments are alike but one, which accumulates the gradients of fewer batches.

    An epoch of ten batches with a step after every four of them is such a pattern: its last step has two batches.
    """
    whole = max(pattern.segments, key=lambda segment: segment.backward)
    rests = [segment for segment in pattern.segments if segment.key != whole.key]
    fewest = min(segment.batches for segment in pattern.segments if segment not in rests)
    # A step on the same batches with fewer backward passes, such as that of a GAN's generator, is no rest.
    if len(rests) != 1 or rests[0].optimizer != whole.optimizer or not 0 < rests[0].batches < fewest:
        return pattern
    return pattern if rests[0].closures else Pattern(segments=(whole,), rest=rests[0])


def _in_use(segments: Sequence[OptimizerStep]) -> set[int]:
    """Optimizers that still step: an optimizer's last step is fewer than `LONGEST` segments ago.

    This distance must also be less than three times the distance between the optimizer's last two steps.
    """
    last: dict[int, int] = {}
    turn: dict[int, int] = {}
    for index, segment in enumerate(segments):
        turn[segment.optimizer] = index - last.get(segment.optimizer, -1)
        last[segment.optimizer] = index
    end = len(segments) - 1
    return {number for number in last if end - last[number] < min(LONGEST, REPEATS * turn[number])}


def _start_of_step(segments: Sequence[OptimizerStep]) -> int:
    """Index of a step's first segment: the segment with data that follows a segment without data.

    If no segment or several fit: the segment with a backward pass that follows a segment without one; else 0.
    """
    batches = [segment.batches for segment in segments]
    passes = [segment.backward + segment.closures for segment in segments]
    for amounts in (batches, passes):
        beginnings = [number for number, amount in enumerate(amounts) if amount and not amounts[number - 1]]
        if len(beginnings) == 1:
            return beginnings[0]
    return 0


def _segments_since_end(pattern: Pattern, segments: Sequence[OptimizerStep]) -> int:
    """Number of segments after the end of the last whole step; 0 if the last segment ended a step."""
    length = len(pattern.segments)
    keys, last = [segment.key for segment in pattern.segments], [segment.key for segment in segments[-length:]]
    return next(n for n in range(length) if keys[n:] + keys[:n] == last) if length > 1 else 0
