"""What one training step of an unknown script is, from the order of its optimizer's steps. Pure.

The script's work is cut into segments, each of which ends where an optimizer has stepped. A training step is the
shortest sequence of segments that repeats: one for most scripts, two for a GAN, six for a GAN whose critic steps five
times. Gradient accumulation shows in the backward passes of a segment.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from workload.contract.text import counted

# A sequence that came three times is taken for the rule; it is checked with every step that follows.
REPEATS = 3
# Optimizer steps after which a script without a rule is refused: a rule of up to 66 optimizer steps shows within them.
MOST_SEGMENTS = 200
# Steps that do not fit the rule, in a row of as many as half of those that do: it is none.
MOST_IRREGULAR, IRREGULAR_SHARE = 5, 0.5


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The work up to an optimizer's step. `optimizer`: its number, in the order in which they came.

    `backward`: passes before the step; `closures`: passes inside it, as LBFGS calls them; `batches`: fetched meanwhile.
    """

    optimizer: int
    backward: int = 1
    closures: int = 0
    batches: int = 1

    @property
    def key(self) -> tuple[int, int, bool]:
        """What repeats: how often a closure is called may depend on its values, but not whether it is."""
        return self.optimizer, self.backward, self.closures > 0


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The segments of one training step, as they came when it was found."""

    segments: tuple[Segment, ...]

    @property
    def backward(self) -> int:
        """Backward passes of a step."""
        return sum(segment.backward + segment.closures for segment in self.segments)

    @cached_property
    def batches(self) -> int:
        """Batches of a step."""
        return sum(segment.batches for segment in self.segments)

    @cached_property
    def keys(self) -> list[tuple[int, int, bool]]:
        """Of its segments."""
        return [segment.key for segment in self.segments]

    def words(self, optimizers: Sequence[str]) -> str:
        """`4 backward passes and 1 SGD step`; `optimizers` are the names by number."""
        steps = Counter(segment.optimizer for segment in self.segments)
        names = Counter(optimizers[number] for number in steps)
        texts = []
        for number, times in sorted(steps.items()):
            name = optimizers[number]
            which = f" of optimizer {number + 1}" if names[name] > 1 else ""
            texts.append(f"{counted(times, f'{name} step')}{which}")
        parts = [_passes(self.backward), *texts]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _passes(number: int) -> str:
    return f"{number} backward pass{'' if number == 1 else 'es'}"


class Seen(Enum):
    """What an optimizer's step was."""

    UNKNOWN = auto()  # no rule so far
    FOUND = auto()  # with it the rule is known, and a training step has just ended
    INSIDE = auto()  # a part of a training step
    STEP = auto()  # the end of a training step
    IRREGULAR = auto()  # the end of something that was no training step
    LOST = auto()  # what was taken for the rule is none: measuring starts again
    UNCLEAR = auto()  # there is no rule


class StepFinder:
    """Finds the rule, then holds every further segment against it."""

    def __init__(self) -> None:
        self.pattern: Pattern | None = None
        self._segments: list[Segment] = []
        self._candidate: Pattern | None = None
        self._position = 0
        self._off_the_rule = False
        self._regular = self._irregular = 0

    def add(self, segment: Segment) -> Seen:
        """What this optimizer's step was."""
        self._segments.append(segment)
        if self.pattern is None:
            return self._search()
        return self._follow(self.pattern, segment)

    def _search(self) -> Seen:
        if self._candidate is None:
            self._candidate = find(self._segments)
            # In the middle of a step, where the script did something else first: wait for its end.
            self._position = _segments_since_end(self._candidate, self._segments) if self._candidate else 0
        else:
            self._position = (self._position + 1) % len(self._candidate.segments)
        if self._candidate and self._position == 0:
            self.pattern = self._candidate
            return Seen.FOUND
        return Seen.UNCLEAR if len(self._segments) >= MOST_SEGMENTS else Seen.UNKNOWN

    def _follow(self, pattern: Pattern, segment: Segment) -> Seen:
        keys = pattern.keys
        if all(segment.optimizer != known for known, *_ in keys):
            return self._lose()
        if self._off_the_rule:
            if [last.key for last in self._segments[-len(keys) :]] != keys:
                return Seen.INSIDE
            # The last step was whole again, but began unseen.
            self._off_the_rule, self._position = False, 0
            return Seen.IRREGULAR
        if segment.key != keys[self._position]:
            return self._broken(len(keys))
        self._position = (self._position + 1) % len(keys)
        self._regular += self._position == 0
        return Seen.INSIDE if self._position else Seen.STEP

    def _broken(self, length: int) -> Seen:
        self._irregular += 1
        self._off_the_rule, self._position = length > 1, 0
        if self._irregular >= MOST_IRREGULAR and self._irregular > IRREGULAR_SHARE * self._regular:
            return self._lose()
        return Seen.INSIDE if self._off_the_rule else Seen.IRREGULAR

    def _lose(self) -> Seen:
        self.pattern = self._candidate = None
        self._off_the_rule = False
        self._position = self._regular = self._irregular = 0
        return Seen.UNCLEAR if len(self._segments) >= MOST_SEGMENTS else Seen.LOST


def find(segments: Sequence[Segment]) -> Pattern | None:
    """The shortest sequence that the last segments repeat three times, with every optimizer that is in use.

    The script's very first optimizer step does not count: some call it once, to quieten a scheduler.
    """
    in_use = {segment.optimizer for segment in segments[1:]}
    keys = [segment.key for segment in segments]
    for length in range(1, len(keys) // REPEATS + 1):
        once = keys[-length:]
        if keys[-REPEATS * length :] == once * REPEATS and {key[0] for key in once} == in_use:
            last = list(segments[-length:])
            start = _first_of_step(last)
            return Pattern(segments=tuple(last[start:] + last[:start]))
    return None


def _first_of_step(segments: Sequence[Segment]) -> int:
    """Where a step begins: with the data after a segment without, else with the backward pass after one without."""
    batches = [segment.batches for segment in segments]
    passes = [segment.backward + segment.closures for segment in segments]
    for amounts in (batches, passes):
        beginnings = [number for number, amount in enumerate(amounts) if amount and not amounts[number - 1]]
        if len(beginnings) == 1:
            return beginnings[0]
    return 0


def _segments_since_end(pattern: Pattern, segments: Sequence[Segment]) -> int:
    """How many segments of an unfinished step the script has behind it."""
    length = len(pattern.segments)
    keys, last = [segment.key for segment in pattern.segments], [segment.key for segment in segments[-length:]]
    return next(n for n in range(length) if keys[n:] + keys[:n] == last) if length > 1 else 0
