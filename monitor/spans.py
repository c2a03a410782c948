"""What goes to the terminal of a partial repaint: the changed spans and nothing beside them.

Textual sends a refreshed span from the left edge of its widget on, so one new point at the right
of a chart costs a whole line. `exact` makes the same update without what did not change.
"""

from rich.console import Console, RenderableType
from rich.control import Control
from textual._compositor import ChopsUpdate


class SpansUpdate(ChopsUpdate):
    """Textual's partial update, cropped at the left of each span as well as at its right."""

    @classmethod
    def of(cls, update: ChopsUpdate) -> "SpansUpdate":
        """Make the same update of fewer characters."""
        return cls(update.chops, update.spans, update.chop_ends)

    def render_segments(self, console: Console) -> str:
        """Return the characters to send."""
        sequences: list[str] = []
        for y, start, stop in self.spans:
            for end, (left, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is None or left >= stop or end <= start:
                    continue
                first = max(left, start)
                sequences.append(Control.move_to(first, y).segment.text)
                sequences.append(strip.crop(first - left, min(end, stop) - left).render(console))
        return "".join(sequences)


def exact(update: RenderableType | None) -> RenderableType | None:
    """Return a partial update that sends its spans only; anything else as it is."""
    return SpansUpdate.of(update) if type(update) is ChopsUpdate else update
