"""Changing a run from the screen: plans asked about, one operation at a time, pins, the guard.

What works does so in a thread of its own and tells by messages. What it did is never painted from
here: the table shows what the disk shows.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from ckpt.errors import Refused
from ckpt.present import Tone
from monitor.feed import sentence
from monitor.planning import plan_of, reason

if TYPE_CHECKING:
    from ckpt.checkpoint import Generation, Slot
    from ckpt.generations import Plan
    from ckpt.present.plans import Line
    from monitor.app import MonitorApp
    from monitor.checks import Checked, Verification
    from monitor.comparing import Comparing
    from monitor.guarding import Guarding
    from monitor.job import At, Ended, Job
    from monitor.tensor_list import Measuring, TensorList
    from monitor.work import Work

GUARDED = (
    "guarded while this screen is open: what its trainer publishes by a rename is kept (K stops "
    "that; `ckpt guard` needs no screen)"
)
LEAVING_S = 2.0
"""A run that is being changed is waited for so long even where the app is told to end at once."""


class WorkTold(Message):
    """The operation that is at work has come further."""

    def can_replace(self, message: Message) -> bool:
        """Only how far it is now matters."""
        return isinstance(message, WorkTold)


class WorkEnded(Message):
    """The operation has ended: in these words, good or bad."""

    def __init__(self, said: str, tone: Tone) -> None:
        super().__init__()
        self.said = said
        self.tone = tone


class GuardEnded(Message):
    """The guard of the run came to an end that nobody wished; `said` is why."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.said = said


class Said(Message):
    """Another thread has something to say."""

    def __init__(self, text: str, tone: Tone) -> None:
        super().__init__()
        self.text = text
        self.tone = tone


class Changes:
    """What the app does to its run.

    `job` is the operation at work, `work` what it is, and `guarding` the guard; `verification` is
    what is verified or was last.
    """

    def __init__(self, app: "MonitorApp") -> None:
        self._app = app
        self.job: Job[Any] | None = None
        self.work: Work | None = None
        self.verification: Verification | None = None
        self.guarding: Guarding | None = None
        self.clock: Callable[[], float] = time.time
        self._is_leaving = False
        self._known = 0
        self._done_last: tuple[Path | None, int] = (None, 0)

    # ---- plans ----------------------------------------------------------------------------------

    @property
    def undo_sequence(self) -> int | None:
        """The entry of the journal that was made here last: what an undo is meant for."""
        run_dir, sequence = self._done_last
        return sequence if run_dir == self._app.run_dir else None

    def ask(self, command: str, key: str | None, *, sequence: int | None = None) -> None:
        """Ask about the plan that a command means for a row of the table.

        `sequence` is the entry that an undo is meant for.
        """
        if self._app.shown is None:
            self._app.say("the checkpoints were not looked at yet")
            return
        view = self._app.shown.view
        try:
            plan = plan_of(command, view, key, self.clock(), sequence=sequence)
        except Refused as refused:
            self._app.say(reason(refused, view))
            return
        self.ask_about(plan)

    def ask_about(self, plan: "Plan", *, more: Sequence["Line"] = ()) -> None:
        """Show a plan, and `more` about it; carry it out if that is confirmed."""
        from ckpt.reflog import Journal
        from monitor.screens.confirm import ConfirmScreen
        from monitor.work import BUTTONS, lines_of, question_of, work_of

        def answered(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self.start(work_of(plan))

        shown = self._app.shown
        journal = shown.view.journal if shown is not None else None
        screen = ConfirmScreen(
            question_of(plan, journal or Journal()),
            [*lines_of(plan, self.clock()), *more],
            BUTTONS[plan.verb],
            ascii_only=self._app.options.is_ascii,
        )
        self._app.push_screen(screen, answered)

    # ---- the operation at work ------------------------------------------------------------------

    @property
    def title(self) -> str | None:
        """What is at work, None when nothing is."""
        if self.job is None:
            return None
        if self.verification is not None and self.is_at_work(self.verification):
            return self.verification.title
        return self.job.title

    def is_at_work(self, about: object) -> bool:
        """Whether what is at work is this verification, comparison or reading of tensors."""
        return self.job is not None and self.work is not None and self.work.about is about

    @property
    def checked_now(self) -> "Checked | None":
        """The generation that is being verified, None while none is."""
        if self.verification is None or not self.is_at_work(self.verification):
            return None
        return self.verification.current

    def has_news(self) -> bool:
        """Whether more generations have their verdict than when this was last asked."""
        checked = self.verification.checked if self.verification is not None else ()
        before, self._known = self._known, sum(each.is_over for each in checked)
        return self._known > before

    def verify(self, rows: "Sequence[tuple[Slot, Generation]]") -> None:
        """Verify generations, one after the other."""
        from monitor.checks import Verification, subject_of, verify_work

        subjects = [subject_of(self._app.run_dir, *row) for row in rows]
        is_recorded = not self._app.options.is_read_only
        verification = Verification(subjects, is_recorded=is_recorded)
        if self.start(verify_work(verification)):
            self.verification = verification

    def measure(self, measuring: "Measuring", name: str) -> bool:
        """Read the statistics of a checkpoint's tensors; False: something else is at work."""
        from monitor.work import Work

        def told(listed: "TensorList") -> str:
            count = len(listed.stats)
            return f"{name}: {count:,} tensor{'' if count == 1 else 's'} read: {measuring.words}"

        return self.start(
            Work(
                f"read the tensors of {name}",
                measuring.operation(),
                told,
                doing="",
                about=measuring,
                tone=lambda _: Tone.BAD if measuring.findings else Tone.GOOD,
                cancelled="cancelled; what was read so far is shown",
            )
        )

    def compare(self, comparing: "Comparing") -> bool:
        """Compare two generations; False: something else is at work."""
        from monitor.work import Work

        return self.start(
            Work(
                comparing.title,
                comparing.operation(),
                lambda _: "",
                doing="",
                about=comparing,
                cancelled="cancelled",
            )
        )

    def start(self, work: "Work") -> bool:
        """Let an operation work; False: another one does."""
        from monitor.job import At, Job
        from monitor.work import ending

        if self.job is not None:
            self._app.say(f"not while this is at work: {self.job.title}", Tone.WARN)
            return False

        run_dir = self._app.run_dir

        def tell(news: "At | Ended[Any]") -> None:
            if isinstance(news, At):
                self._post(WorkTold())
            else:
                done = getattr(news.result, "sequence", None)
                if done is not None:
                    self._done_last = run_dir, done
                self._post(WorkEnded(*ending(work, news)))

        self.work = work
        self.job = Job(work.title, work.operation, tell, is_changing=work.is_changing)
        self.job.start()
        self._post(WorkTold())
        return True

    def cancel(self) -> None:
        """Let the operation stop, if it has changed nothing yet."""
        if self.job is not None and not self.job.cancel():
            self._app.say(f"{self.job.title}: it changes the run by now, and ends by itself")

    def end_work(self) -> bool:
        """Take note that the operation has ended; True: it was only waited for to leave."""
        self.job = self.work = None
        return self._is_leaving

    def may_leave(self) -> bool:
        """Cancel what can be cancelled; False: a change of the run is to end first."""
        if self.job is None or self.job.cancel():
            return True
        self._is_leaving = True
        self._app.say(f"leaving as soon as this has ended: {self.job.title}", Tone.WARN)
        return False

    def stop(self) -> None:
        """End all that works here, soon; wait a little for a change of the run to end."""
        if self.guarding is not None:
            self.guarding.stop(LEAVING_S)
        if self.job is not None and not self.job.cancel():
            self.job.join(LEAVING_S)

    # ---- pins and the guard ---------------------------------------------------------------------

    def toggle_pin(self, generation: str, *, is_pinned: bool) -> None:
        """Pin a generation, or let it go."""
        args = (self._app.run_dir, generation, is_pinned)
        threading.Thread(target=self._pin, args=args, name="pin", daemon=True).start()

    def _pin(self, run_dir: Path, generation: str, is_pinned: bool) -> None:
        from ckpt.control import pin, unpin

        try:
            if is_pinned:
                unpin(run_dir, generation)
                said = Said(f"{generation} may be pruned again (p pins it)", Tone.GOOD)
            else:
                pin(run_dir, generation)
                said = Said(f"{generation} is pinned: no prune takes it (p unpins it)", Tone.GOOD)
        except OSError as error:
            said = Said(sentence(error), Tone.BAD)
        self._post(said)

    def toggle_guard(self) -> None:
        """Guard the run for as long as this screen is open, or stop that."""
        from monitor.guarding import Guarding

        if self.guarding is not None:
            self.unguard()
            self._app.say("not guarded any more")
            return
        run_dir, poll_s = self._app.run_dir, self._app.options.poll_s
        self.guarding = Guarding(run_dir, self._guard_told, poll_s=poll_s)
        self.guarding.start()
        self._app.say(GUARDED)

    def unguard(self) -> None:
        """Stop guarding, if the run is guarded."""
        if self.guarding is not None:
            self.guarding.stop()
            self.guarding = None

    def _guard_told(self, told: str | Exception) -> None:
        """Hand on what somebody should know: what was kept is seen in the table anyway."""
        if isinstance(told, Exception):
            self._post(GuardEnded(f"not guarded any more: {sentence(told)}"))
        elif "cannot be" in told:
            self._post(Said(told, Tone.WARN))

    def _post(self, message: Message) -> None:
        self._app.post_from_thread(self._app, message)
