"""What meta.json says: the caller's numbers and the time of saving, then what else is given."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ckpt import jsontext
from ckpt.errors import PublishError


def full_meta(meta: Mapping[str, Any], *, epoch: int, consumed_samples: int) -> dict[str, Any]:
    """Return what meta.json will say: the caller's numbers and the time first, then `meta`'s rest.

    Raises:
        PublishError: a number is no whole number from 0 on.
    """
    for name, value in (("epoch", epoch), ("consumed_samples", consumed_samples)):
        if not jsontext.is_whole(value):
            raise PublishError(f"{name}: expected a whole number from 0 on, found {value!r:.60}")
    own = {
        "epoch": epoch,
        "consumed_samples": consumed_samples,
        "timestamp": datetime.now().isoformat(timespec="seconds"),  # noqa: DTZ005 - AstrAI's own way: local time
    }
    return {**own, **{key: value for key, value in meta.items() if key not in own}}
