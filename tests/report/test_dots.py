"""Named values as dots: every name and number is there, in order, also for those who do not see it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from regard.report.dots import dots


def test_every_name_and_value_is_drawn_in_order() -> None:
    values = [("softmax", 1.52), ("window & sinks", 1.6), ("<linear>", 1.9)]
    root = ElementTree.fromstring(dots(values, "loss", "Losses", 1000, line=1.52))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert [text for text in texts if text in dict(values)] == [name for name, _ in values]
    across = [float(e.attrib["cx"]) for e in root.iter() if e.tag.endswith("circle")]
    assert across == sorted(across)
    assert len(across) == 3
    described = next(e.text for e in root.iter() if e.tag.endswith("desc"))
    assert described is not None
    assert all(name in described for name, _ in values)


def test_nothing_gives_nothing() -> None:
    assert dots([], "loss", "Losses", 1000) == ""
