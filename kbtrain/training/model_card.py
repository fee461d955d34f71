"""The README.md of every trained folder: one template, filled from the run that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbtrain.gate_folder import THRESHOLD_HEADING
from kbtrain.installation import as_typed

_TEXT = """---
library_name: {library}
{base}tags: [{tags}]
---
# {title}
{what}

```python
{use}
```

{points}
- Limits: {limits}
- Saved, opened again and checked on {n_probe} {unit}: {quantity} differs by at most {worst:.1e}.

## On dev{of_dev}
{metrics}

{heading}
{threshold}{more}

## Run
{run}

## Versions
{versions}
"""


@dataclass(frozen=True)
class ModelCard:
    """The slots of the template. ``points``: what is read, which labels were learnt, and how, a line each.

    ``metrics`` is Markdown; ``threshold`` says what decides; ``sections`` are further ones, by their heading.
    """

    title: str
    what: str
    use: str
    points: tuple[str, ...]
    limits: str
    metrics: str
    threshold: str
    run: Mapping[str, object]
    versions: Mapping[str, str]
    n_probe: int
    tags: tuple[str, ...]
    of_dev: str = ""
    base: str | None = None
    library: str = "kbtrain"
    unit: str = "examples"
    quantity: str = "a score"
    sections: Mapping[str, str] = field(default_factory=dict)

    def text(self, worst: float) -> str:
        """The file's content; ``worst`` is the largest difference that the check after saving found."""
        text = _TEXT.format(
            library=self.library,
            base=f"base_model: {self.base}\n" if self.base else "",
            tags=", ".join(self.tags),
            title=self.title,
            what=self.what,
            use=self.use,
            points="\n".join(f"- {point}" for point in self.points),
            limits=self.limits,
            n_probe=self.n_probe,
            unit=self.unit,
            quantity=self.quantity,
            worst=worst,
            of_dev=f" ({self.of_dev})" if self.of_dev else "",
            metrics=self.metrics,
            heading=THRESHOLD_HEADING,
            threshold=self.threshold,
            more="".join(f"\n\n## {heading}\n{text}" for heading, text in self.sections.items()),
            run=table(self.run),
            versions=table(self.versions),
        )
        return as_typed(text)


def table(values: Mapping[str, object]) -> str:
    """A Markdown table of two columns without a heading; empty for no values."""
    if not values:
        return ""
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
