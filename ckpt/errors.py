"""Every exception that ckpt raises on purpose; imports nothing.

CheckpointError
├── NoSuchRun               the path is no run: says what was looked for
├── UnreadableCheckpoint    nothing can be said of this path as a checkpoint
│   ├── NoCheckpoint        no format claims the path
│   ├── DamagedCheckpoint   what is there is not what was recorded
│   └── UnsupportedVersion  understood to be newer than, or other than, what we read
├── TornRead                the file is being written right now: read it again
├── DuplicateKey            a JSON object holds one key twice
├── DoesNotFit              a checkpoint and the model it is for have other tensors
├── Untrusted               a pickle that could run code while it is loaded
├── PublishError            a checkpoint could not be published; what was there still is
├── Refused                 what was asked would lose or harm something, or there is nothing to do
├── StalePlan               the disk changed since the plan was made
└── Busy                    somebody else is at it: names who

CannotWrite                 a command cannot write what it says: nobody reads it, its disk is full
"""


class CheckpointError(Exception):
    """A failure that a user can act on: what, where, expected and found; `hint` says what to do.

    `code` is stable kebab-case and goes into `ckpt.error/1`; `path` is the file or directory.
    """

    code = "error"

    def __init__(self, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint


class NoSuchRun(CheckpointError):
    """The path does not hold a run; the message says what was looked for."""

    code = "no-such-run"


class UnreadableCheckpoint(CheckpointError):
    """Nothing can be said of this path as a checkpoint."""

    code = "unreadable"


class NoCheckpoint(UnreadableCheckpoint):
    """No format claims the path."""

    code = "no-checkpoint"


class DamagedCheckpoint(UnreadableCheckpoint):
    """A checkpoint is not whole, or its bytes are not the recorded ones."""

    code = "damaged"


class UnsupportedVersion(UnreadableCheckpoint):
    """The path is newer than, or of another kind than, what this program reads."""

    code = "unsupported-version"


class TornRead(CheckpointError):
    """The file does not parse: it is being written right now, or was left half-written.

    `finding_code` is what a check calls it when it stays so (`bad-index`), None: any JSON file.
    """

    code = "torn-read"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        hint: str | None = None,
        finding_code: str | None = None,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.finding_code = finding_code


class DuplicateKey(CheckpointError):
    """A JSON object holds one key twice, so that two readers may see two different values."""

    code = "duplicate-key"


class DoesNotFit(CheckpointError):
    """The tensors of a checkpoint and of what it is loaded into differ; the message names them."""

    code = "does-not-fit"


class Untrusted(CheckpointError):
    """A pickle holds more than tensors and plain values, so that loading it could run code."""

    code = "untrusted"


class PublishError(CheckpointError):
    """A checkpoint could not be published; whatever stood at the name still stands."""

    code = "publish-failed"


class Refused(CheckpointError):
    """What was asked would harm something, or there is nothing to do; nothing was touched."""

    code = "refused"


class StalePlan(CheckpointError):
    """The disk changed since the plan was made; nothing was touched."""

    code = "stale-plan"


class Busy(CheckpointError):
    """Somebody else holds what is needed; the message names them."""

    code = "busy"


class CannotWrite(Exception):
    """A command's own output takes no more; `error` is what the stream said."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error
