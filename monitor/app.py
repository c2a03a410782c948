"""MonitorApp: one run on the screen. The feed's messages are the only way in.

Imports only what the first frame needs; what reads a run is imported by the feed's own thread.
"""

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from textual.app import App
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen

from ckpt.errors import CheckpointError
from ckpt.present import Tone, visible
from ckpt.view import RunView
from monitor.alerts import news
from monitor.feed import Feed, Shown, sentence
from monitor.options import Options
from monitor.screens.base import CommandScreen
from monitor.screens.dashboard import DashboardScreen
from monitor.spans import exact

if TYPE_CHECKING:
    from monitor.job import At, Ended, Job
    from monitor.work import Work

LEAVING_S = 2.0
"""A run that is being changed is waited for so long even where the app is told to end at once."""


class RunUpdated(Message):
    """The whole state of the run: a newer one replaces it, so a slow link drops stale ones."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self.shown = shown

    def can_replace(self, message: Message) -> bool:
        """A message that says the same of a later time is enough."""
        return isinstance(message, RunUpdated)


class SeveralRuns(Message):
    """The directory is no run itself but holds some."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory


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


class Said(Message):
    """Another thread has something to say."""

    def __init__(self, text: str, tone: Tone) -> None:
        super().__init__()
        self.text = text
        self.tone = tone


class MonitorApp(App[None]):
    """The app behind `ckpt-monitor RUN`. `options` is what the command line said."""

    CSS_PATH = "monitor.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "ckpt-monitor"

    shown: var[Shown | None] = var(None, init=False)
    """The newest view and the time that its ages count from; the screens paint it."""

    def __init__(self, run_dir: Path, options: Options) -> None:
        super().__init__(ansi_color=True)
        self.run_dir = run_dir
        self.options = options
        self.home = DashboardScreen(RunView(run=run_dir), ascii_only=options.is_ascii)
        self.runs_in: Path | None = None
        self.fault: str | None = None
        self.job: Job[Any] | None = None
        """The operation that is at work; there is one at a time."""
        self.clock: Callable[[], float] = time.time
        self._is_leaving = False
        self.feed = self._feed_of(run_dir)

    def get_default_screen(self) -> Screen[None]:
        """Start with the dashboard, without a screen below it."""
        return self.home

    def on_mount(self) -> None:
        """Start looking once the first frame is out."""
        looking = threading.Thread(target=self._begin, name="begin", daemon=True)
        self.home.call_after_refresh(looking.start)

    def on_unmount(self) -> None:
        """Stop reading; let a change of the run come to its end."""
        self.feed.stop()
        if self.job is not None and not self.job.cancel():
            self.job.join(LEAVING_S)

    def follow(self, run_dir: Path) -> None:
        """Show another run, chosen from the list of runs."""
        self.feed.stop()
        self.run_dir = run_dir
        self.shown = None
        self.home.show_other_run(RunView(run=run_dir))
        self.feed = self._feed_of(run_dir)
        self.feed.start()
        self.pop_screen()

    def choose_run(self) -> None:
        """Show the list of runs that the given directory holds."""
        from monitor.screens.runs import RunsScreen

        if self.runs_in is None:
            return
        screen = RunsScreen(self.runs_in, ascii_only=self.options.is_ascii)
        self.push_screen(screen)
        args = (self.runs_in, screen)
        threading.Thread(target=self._read_runs, args=args, name="runs", daemon=True).start()

    def on_several_runs(self, event: SeveralRuns) -> None:
        """Ask which one."""
        self.runs_in = event.directory
        self.choose_run()

    def _feed_of(self, run_dir: Path) -> Feed:
        def take(shown: Shown) -> None:
            if shown.view.run == self.run_dir:
                self._post_from_thread(self, RunUpdated(shown))

        return Feed(
            run_dir, take, poll_s=self.options.poll_s, is_read_only=self.options.is_read_only
        )

    def _begin(self) -> None:
        """Read the run, or where the directory holds runs instead of being one, ask which.

        Before anything of it is read: facts of several runs must never meet in one view.
        """
        from ckpt.generations import child_runs, is_run

        if not is_run(self.run_dir) and child_runs(self.run_dir):
            self._post_from_thread(self, SeveralRuns(self.run_dir))
        else:
            self.feed.start()

    def _read_runs(self, directory: Path, screen: Screen[None]) -> None:
        from ckpt.generations import child_runs
        from ckpt.sources import read_run
        from monitor.screens.runs import RunsScreen

        now = time.time()
        views = []
        for run in child_runs(directory):
            try:
                views.append(read_run(run, now))
            except (CheckpointError, OSError):  # it went away, or may not be read: named, no facts
                views.append(RunView(run=run))
        self._post_from_thread(screen, RunsScreen.Read(views, now))

    def on_run_updated(self, event: RunUpdated) -> None:
        """Take the newest view: the one place that assigns it."""
        self.shown = event.shown

    def watch_shown(self, before: Shown | None, after: Shown | None) -> None:
        """Let the dashboard paint, and ring for what matters."""
        if after is None:
            return
        self.home.show_run(after.view, after.now)
        if isinstance(self.screen, CommandScreen) and self.screen is not self.home:
            self.screen.show_run(after.view, after.now)
        if before is not None and before.is_whole:
            for text in news(before.view, after.view):
                self.ring(text)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Send of a partial repaint only the spans that changed."""
        super()._display(screen, exact(renderable))

    def _fatal_error(self) -> None:
        """End because of a fault of our own; who runs the app says it once the screen is gone."""
        self.fault = traceback.format_exc()
        self._close_messages_no_wait()

    def ring(self, text: str) -> None:
        """Ring the bell, and tell terminals that can show a notification (OSC 9)."""
        self.bell()
        if self._driver is not None:
            self._driver.write(f"\x1b]9;{visible(text)}\x07")

    def open_checkpoint(self, path: Path) -> None:
        """Show a checkpoint: the screen at once, its contents once another thread read them."""
        from monitor.screens.checkpoint import CheckpointScreen

        screen = CheckpointScreen(str(path), ascii_only=self.options.is_ascii)
        self.push_screen(screen)
        reading = threading.Thread(
            target=self._read_checkpoint, args=(path, screen), name="checkpoint", daemon=True
        )
        reading.start()

    def _read_checkpoint(self, path: Path, screen: Screen[None]) -> None:
        from monitor.screens.checkpoint import CheckpointScreen, contents_of

        answer: Message
        try:
            from ckpt.verify import inspect_settled

            contents = contents_of(inspect_settled(path), ascii_only=self.options.is_ascii)
            answer = CheckpointScreen.Read(contents)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is shown where it was asked for
            answer = CheckpointScreen.Failed(sentence(error))
        self._post_from_thread(screen, answer)

    # ---- changing the run -----------------------------------------------------------------------

    def ask(self, command: str, key: str | None) -> None:
        """Show the plan that a command means for a row, and carry it out if that is confirmed."""
        from ckpt.errors import Refused
        from monitor.planning import plan_of, reason
        from monitor.screens.confirm import ConfirmScreen
        from monitor.work import BUTTONS, lines_of, question_of, work_of

        if self.shown is None:
            self.say("the checkpoints were not looked at yet")
            return
        view, now = self.shown.view, self.clock()
        try:
            plan = plan_of(command, view, key, now)
        except Refused as refused:
            self.say(reason(refused, view))
            return

        def answered(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self._start(work_of(plan))

        assert view.journal is not None  # or there would be no plan
        screen = ConfirmScreen(
            question_of(plan, view.journal),
            lines_of(plan, now),
            BUTTONS[plan.verb],
            ascii_only=self.options.is_ascii,
        )
        self.push_screen(screen, answered)

    def _start(self, work: "Work") -> None:
        """Let an operation work in a thread; what it does is seen where the disk is watched."""
        from monitor.job import At, Job
        from monitor.work import ending

        if self.job is not None:
            self.say(f"not while this is at work: {self.job.title}", Tone.WARN)
            return

        def tell(news: "At | Ended[Any]") -> None:
            if isinstance(news, At):
                self._post_from_thread(self, WorkTold())
            else:
                self._post_from_thread(self, WorkEnded(*ending(work, news)))

        self.job = Job(work.title, work.operation, tell, is_changing=work.is_changing)
        self.job.start()
        self.on_work_told()

    def on_work_told(self) -> None:
        """Show how far it is."""
        if isinstance(self.screen, CommandScreen):
            self.screen.show_work()

    def on_work_ended(self, event: WorkEnded) -> None:
        """Say how it ended, and look at the run: only what the disk shows is painted."""
        self.job = None
        self.feed.look_again()
        if self._is_leaving:
            self.exit()
            return
        self.say(event.said, event.tone)

    def cancel_work(self) -> None:
        """Let the operation stop, if it has changed nothing yet."""
        if self.job is not None and not self.job.cancel():
            self.say(f"{self.job.title}: it changes the run by now, and ends by itself")

    def leave(self) -> None:
        """Leave the app: at once, or as soon as a change of the run has come to its end."""
        if self.job is None or self.job.cancel():
            self.exit()
            return
        self._is_leaving = True
        self.say(f"leaving as soon as this has ended: {self.job.title}", Tone.WARN)

    def toggle_pin(self, generation: str, *, is_pinned: bool) -> None:
        """Pin a generation, or let it go."""
        args = (self.run_dir, generation, is_pinned)
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
        self.feed.look_again()
        self._post_from_thread(self, said)

    def on_said(self, event: Said) -> None:
        """Say what another thread has to say."""
        self.say(event.text, event.tone)

    def say(self, text: str, tone: Tone = Tone.ACCENT) -> None:
        """Say one line at the foot of the screen."""
        screen = self.screen if isinstance(self.screen, CommandScreen) else self.home
        screen.say(text, tone)

    def show_history(self) -> None:
        """Show what was done to the checkpoints."""
        from monitor.screens.history import HistoryScreen

        if self.shown is not None:
            view, now = self.shown.view, self.shown.now
            self.push_screen(HistoryScreen(view, now, ascii_only=self.options.is_ascii))

    def _post_from_thread(self, to: "MonitorApp | Screen[None]", message: Message) -> None:
        try:
            to.post_message(message)
        except RuntimeError:  # the loop has just closed: nobody is left to show it to
            if self.is_running:
                raise
