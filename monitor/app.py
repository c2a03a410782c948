"""MonitorApp: one run on the screen. The feed's messages are the only way in.

Imports only what the first frame needs; what reads a run is imported by the feed's own thread.
"""

import threading
import time
import traceback
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
from monitor.changes import Changes, GuardEnded, Said, WorkEnded
from monitor.feed import Feed, Shown, sentence
from monitor.options import Options
from monitor.planning import find_row
from monitor.screens.base import CommandScreen
from monitor.screens.dashboard import DashboardScreen
from monitor.spans import exact

if TYPE_CHECKING:
    from ckpt.named import Named


LEAST_SAID_S = 1.0
"""How an operation ended is not wiped off by a key that was pressed at that moment."""


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
        self.changes = Changes(self)
        self.feed = self._feed_of(run_dir)

    @property
    def front(self) -> CommandScreen | None:
        """The screen in front; None while it is a question, the palette, or none any more."""
        stack = self.screen_stack
        return stack[-1] if stack and isinstance(stack[-1], CommandScreen) else None

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
        self.changes.stop()

    def follow(self, run_dir: Path) -> None:
        """Show another run, chosen from the list of runs."""
        self.feed.stop()
        self.changes.unguard()
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
                self.post_from_thread(self, RunUpdated(shown))

        return Feed(
            run_dir, take, poll_s=self.options.poll_s, is_read_only=self.options.is_read_only
        )

    def _begin(self) -> None:
        """Read the run, or where the directory holds runs instead of being one, ask which.

        Before anything of it is read: facts of several runs must never meet in one view.
        """
        from ckpt.generations import child_runs, is_run

        if not is_run(self.run_dir) and child_runs(self.run_dir):
            self.post_from_thread(self, SeveralRuns(self.run_dir))
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
        self.post_from_thread(screen, RunsScreen.Read(views, now))

    def on_run_updated(self, event: RunUpdated) -> None:
        """Take the newest view: the one place that assigns it."""
        self.shown = event.shown

    def watch_shown(self, before: Shown | None, after: Shown | None) -> None:
        """Let the dashboard paint, and ring for what matters."""
        if after is None:
            return
        self.home.show_run(after.view, after.now)
        front = self.front
        if front is not None and front is not self.home:
            front.show_run(after.view, after.now)
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

    def open_checkpoint(self, path: Path, key: str | None = None) -> None:
        """Show a checkpoint: the screen at once, its contents once another thread read them.

        `key` is that of its row where it is a generation of the run.
        """
        from ckpt.named import Named
        from monitor.screens.checkpoint import CheckpointScreen

        named = self.named(key) or Named(path, path)
        screen = CheckpointScreen(named, key, ascii_only=self.options.is_ascii)
        if self.shown is not None:
            screen.show_run(self.shown.view, self.shown.now)
        self.push_screen(screen)
        reading = threading.Thread(
            target=self._read_checkpoint, args=(named, screen), name="checkpoint", daemon=True
        )
        reading.start()

    def named(self, key: str | None) -> "Named | None":
        """Return what the generation of a row is called and where it lies; None: it is none."""
        from ckpt.named import named_of

        row = find_row(self.shown.view, key) if self.shown is not None else None
        if row is None or row[1] is None:
            return None
        return named_of(self.run_dir, row[0], row[1])

    def compare(self, before: str, after: str) -> None:
        """Show what changed from the generation of one row to that of another."""
        from monitor.comparing import Comparing
        from monitor.screens.diff import DiffScreen

        named_before, named_after = self.named(before), self.named(after)
        if named_before is None or named_after is None:
            return
        ascii_only = self.options.is_ascii
        comparing = Comparing(named_before, named_after, ascii_only=ascii_only)
        if self.changes.compare(comparing):
            self.push_screen(DiffScreen(comparing, ascii_only=ascii_only))

    def _read_checkpoint(self, named: "Named", screen: Screen[None]) -> None:
        from monitor.screens.checkpoint import CheckpointScreen, contents_of

        answer: Message
        try:
            from ckpt.named import inspect_named

            contents = contents_of(inspect_named(named), ascii_only=self.options.is_ascii)
            answer = CheckpointScreen.Read(contents)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is shown where it was asked for
            answer = CheckpointScreen.Failed(sentence(error))
        self.post_from_thread(screen, answer)

    # ---- changing the run -----------------------------------------------------------------------

    def on_work_told(self) -> None:
        """Show how far the operation is; where it has recorded a verdict, look at that."""
        if self.changes.has_news():
            self.feed.look_again()
        if self.front is not None:
            self.front.show_work()

    def on_work_ended(self, event: WorkEnded) -> None:
        """Say how it ended, and look at the run: only what the disk shows is painted."""
        if self.changes.end_work():
            self.exit()
            return
        self.feed.look_again()
        if self.screen_stack:
            self.home.show_work()  # its row says no more how far it is
            self.on_work_told()
        if event.said:
            self.say(event.said, event.tone, least_s=LEAST_SAID_S)

    def on_guard_ended(self, event: GuardEnded) -> None:
        """Say that the run is not guarded any more, which nobody wished."""
        self.changes.guarding = None
        self.home.paint_all()
        self.say(event.said, Tone.BAD)

    def on_said(self, event: Said) -> None:
        """Say what another thread has to say, and look at what it did."""
        self.feed.look_again()
        self.say(event.text, event.tone)

    def leave(self) -> None:
        """Leave the app: at once, or as soon as a change of the run has come to its end."""
        if self.changes.may_leave():
            self.exit()

    def say(self, text: str, tone: Tone = Tone.ACCENT, *, least_s: float = 0.0) -> None:
        """Say something at the foot of the screen; moves of the cursor leave it for `least_s`."""
        if self.screen_stack:
            (self.front or self.home).say(text, tone, least_s=least_s)

    # ---- other screens --------------------------------------------------------------------------

    def show_history(self) -> None:
        """Show what was done to the checkpoints."""
        from monitor.screens.history import HistoryScreen

        if self.shown is not None:
            view, now = self.shown.view, self.shown.now
            self.push_screen(HistoryScreen(view, now, ascii_only=self.options.is_ascii))

    def show_verification(self) -> None:
        """Show how far the verification is, or how the last one ended."""
        from monitor.screens.verification import VerificationScreen

        verification = self.changes.verification
        if verification is not None:
            screen = VerificationScreen(verification, ascii_only=self.options.is_ascii)
            self.push_screen(screen)

    def show_policies(self) -> None:
        """Show what each policy would keep and free."""
        from monitor.screens.prune import PruneScreen

        if self.shown is not None:
            view = self.shown.view
            now = self.changes.clock()
            self.push_screen(PruneScreen(view, now, ascii_only=self.options.is_ascii))

    def post_from_thread(self, to: "MonitorApp | Screen[None]", message: Message) -> None:
        """Post a message from another thread; once the app is over there is nobody to get it."""
        try:
            to.post_message(message)
        except RuntimeError:  # the loop has just closed: nobody is left to show it to
            if self.is_running:
                raise
